"""A worker's slots for episodes, and who follows the engines' load to say how many there are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from agentrl.errors import EngineUnavailable
from agentrl.rollout.adaptive import AdaptiveLimit, Load
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.slots import Slots

log = logging.getLogger(__name__)


class LoadSource(Protocol):
    async def read(self) -> Load:
        """In bounded time. Raises EngineUnavailable when nobody tells it."""
        ...

    async def close(self) -> None: ...


class Concurrency:
    """Belongs to one event loop: `start`, which may be called again, and `close`."""

    def __init__(self, config: RolloutConfig, source: LoadSource) -> None:
        self._adaptive = AdaptiveLimit(config.adaptive, config.concurrency) if config.adaptive.enabled else None
        self._every_s = config.adaptive.every_s
        self._source = source
        self._load: Load | None = None
        self._following: asyncio.Task[None] | None = None
        self.slots = Slots(self._adaptive.limit if self._adaptive else config.concurrency)

    def start(self) -> None:
        if self._adaptive is not None and self._following is None:
            self._following = asyncio.create_task(self._follow(self._adaptive), name="following the engines' load")

    def stats(self) -> dict[str, float]:
        """Episodes under way, how many may be, and the engines' load where it is followed."""
        found: dict[str, float] = {"under_way": self.slots.taken, "limit": self.slots.limit}
        if self._load is not None:
            load = self._load
            found |= {"kv_use": load.kv_use, "running": load.running, "waiting": load.waiting}
        return found

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await self._source.close()

    async def _follow(self, adaptive: AdaptiveLimit) -> None:
        """A load that cannot be read changes nothing, and is logged once in a row."""
        failing = False
        while True:
            try:
                self._load = await self._source.read()
                self.slots.limit = adaptive.see(self._load, under_way=self.slots.taken)
                failing = False
            except EngineUnavailable as error:
                if not failing:
                    log.warning("as many episodes as before are under way: %s", error)
                failing = True
            await asyncio.sleep(self._every_s)
