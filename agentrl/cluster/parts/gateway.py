"""The run's gateway: one process, in an actor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentrl.cluster.actors import GatewayActor
from agentrl.cluster.handles import cause, remote
from agentrl.cluster.parts.actor import Actor
from agentrl.cluster.parts.setting import ACTOR_START_S, PROBED, Setting, start_limit
from agentrl.cluster.ray_session import actor_class
from agentrl.cluster.transfer import adapter_name
from agentrl.engine.launch import LOOPBACK
from agentrl.errors import AgentRLError, RunError
from agentrl.types import StopReason

logger = logging.getLogger(__name__)

ASK_EVERY_S = 0.5
ENDED = StopReason.CANCELLED.value


class GatewayProcess:
    """`start`, then `url`. One that comes back has the same URL and key, and its sessions from the store."""

    name = "gateway"
    url: str
    came_back: Sequence[Callable[[], Awaitable[None]]] = ()
    """Asked when it is another one, which knows no engine."""

    def __init__(self, setting: Setting) -> None:
        self.log: Path = setting.logs / "gateway.log"
        self._setting = setting
        self._port = setting.config.gateway.port
        self._probe_timeout_s = setting.config.supervision.probe_timeout_s
        self.actor = Actor("the gateway", self._make, probe_timeout_s=self._probe_timeout_s)
        self._http = httpx.AsyncClient(timeout=self._probe_timeout_s, trust_env=False)

    @property
    def actors(self) -> list[Any]:
        return [] if self.actor.handle is None else [self.actor.handle]

    async def start(self) -> None:
        """Raises an AgentRLError when it does not come up."""
        self.actor.begin()
        await self.actor.located()
        async with start_limit("the gateway", ACTOR_START_S):
            try:
                self.url = await remote(self.actor.handle.start.remote())
            except AgentRLError:
                raise
            except Exception as error:
                raise RunError(f"the gateway died while it started: {cause(error)}") from error
        self._port = self._port or urlsplit(self.url).port or 0

    async def probe(self) -> tuple[bool, bool]:
        (running, answered), serving = await asyncio.gather(self.actor.probe(), self._serves())
        return running, answered and serving

    async def lost(self) -> None:
        """Who calls it tries again by itself."""

    async def restart(self) -> None:
        self.actor.kill()
        await self.start()
        for tell in self.came_back:
            await tell()

    async def end_group(self, group_id: str) -> list[str]:
        """Finishes the sessions of a group that nobody plays on; the ids of those that have calls.

        Raises RunError when the gateway does not do it, and does not come back to do it.
        """
        patience_s = self._setting.patience_s
        try:
            async with asyncio.timeout(patience_s):
                while True:
                    try:
                        ended: list[str] = await remote(self.actor.handle.end_group.remote(group_id, ENDED))
                    except AgentRLError as error:  # the store was slow, or is out
                        logger.error("%s", error)
                    except Exception as error:  # Ray says in many ways that an actor is gone
                        logger.error("the gateway did not end group %s: %s", group_id, cause(error))
                    else:
                        return ended
                    await asyncio.sleep(ASK_EVERY_S)
        except TimeoutError:
            raise RunError(
                f"sessions of group {group_id} could not be ended in {patience_s:g} s; see why in {self.log}"
            ) from None

    def kill(self) -> None:
        self.actor.kill()

    async def close(self) -> None:
        await self._http.aclose()

    async def _serves(self) -> bool:
        try:
            return (await self._http.get(f"{self.url}/health")).is_success
        except httpx.HTTPError:
            return False

    def _make(self) -> Any:
        setting, site = self._setting, self._setting.site
        config = setting.config.gateway.model_copy(update={"port": self._port})
        if config.host == LOOPBACK:
            config = config.model_copy(update={"host": site.host})
        return actor_class(GatewayActor, max_concurrency=PROBED, **site.beside_the_driver()).remote(
            config,
            tokenizer=str(setting.model),
            admin_key=setting.admin_key,
            store_url=setting.store_url,
            timeouts=setting.config.engine.timeouts,
            logs=setting.logs,
            adapter=adapter_name(setting.config),
            engine_key=site.engine_key,
        )
