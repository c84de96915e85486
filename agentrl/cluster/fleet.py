"""All engines of a run: one swap over them, and the gateway told who serves which version."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from agentrl.cluster.pool import PoolOfEngines, Seat
from agentrl.engine.control import EngineControl
from agentrl.engine.swap import WeightSwap
from agentrl.errors import EngineError, SwapError
from agentrl.types import SwapMode, SwapRecord

logger = logging.getLogger(__name__)

Report = Callable[[str, str], None]
"""(engine id, what is wrong with it, as its name goes on)."""


class Routing(Protocol):
    """The gateway's table of engines. Waits, in bounds, for a gateway that is being started again, then raises
    RunError."""

    async def show(self, engine_id: str, url: str, version: int) -> None:
        """It has the version and may be routed to."""
        ...

    async def withdraw(self, engine_id: str) -> None:
        """It is routed to no more, and what it was answering goes on elsewhere."""
        ...


class EngineFleet:
    """The run's `agentrl.train.ports.Engines`.

    The gateway hears of a version only after the engine itself confirmed it, and knows no engine that missed one
    (invariant 4). An engine that fails a swap, or does not sleep when it is asked to, is withdrawn and reported.
    """

    def __init__(
        self,
        controls: Sequence[EngineControl],
        *,
        mode: SwapMode | Mapping[str, SwapMode],
        routing: Routing,
        record: Callable[[SwapRecord], None],
        sleep_level: int | None = None,
        wait_s: float = 0.0,
    ) -> None:
        """`record` writes the swap log; what an engine samples under a version can then be explained after a crash.

        With a `sleep_level`, engines may be put to sleep, and each swap wakes them. `wait_s`: how long a swap waits for
        an engine while none is up.
        """
        self.report: Report = lambda engine_id, what: None
        self._sleep_level = sleep_level
        self._controls = {control.engine_id: control for control in controls}
        self._pool = PoolOfEngines(self._controls)
        self._shown: dict[str, tuple[str, int]] = {}  # what the gateway knows: URL and version by id
        self._telling = asyncio.Lock()  # what the gateway is told comes in order
        self._changed = asyncio.Condition()
        self._record = record
        self._mode = mode
        self._routing = routing
        self._wait_s = wait_s

    async def register(self) -> None:
        """All engines are up, with the initial weights: puts them behind the gateway."""
        for engine_id in self._controls:
            self._pool.started(engine_id)
        await self._tell()

    async def register_again(self) -> None:
        """The gateway is another one, which knows no engine."""
        async with self._telling:
            self._shown.clear()
        await self._tell()

    @property
    def version(self) -> int:
        """The newest that engines have."""
        return self._pool.version

    @property
    def swapping(self) -> bool:
        """Whether engines are asked for things now that may take long."""
        return self._pool.swapping

    async def urls(self) -> list[str]:
        """Of the engines that are up. Raises SwapError when none comes up in time."""
        return [self._controls[seat.engine_id].url for seat in await self._up()]

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[WeightSwap]:
        """Raises SwapError when no engine took the version, or none came up in time."""
        async with self._swap(version, await self._up()) as swap:
            yield swap

    @asynccontextmanager
    async def catch_up(self, *, all_together: bool = False) -> AsyncIterator[WeightSwap | None]:
        """See `agentrl.train.ports.Engines`."""
        if not self._pool.behind:
            yield None
            return
        async with self._swap(self._pool.version, self._pool.up if all_together else self._pool.behind) as swap:
            yield swap

    async def lost(self, engine_id: str) -> None:
        """It died, hangs or failed: nothing is asked of it until it is back."""
        self._pool.lost(engine_id)
        await self._tell()

    async def back(self, control: EngineControl, boot: SwapRecord) -> None:
        """It was started again, with the initial weights. It is routed to once it has the newest version."""
        engine_id = control.engine_id
        old, self._controls[engine_id] = self._controls[engine_id], control
        await old.close()
        self._record(boot)
        self._pool.started(engine_id)
        await self._tell()

    async def until_current(self, engine_id: str) -> None:
        """Returns when the engine may be routed to. Raises EngineError when it failed instead."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._pool[engine_id].state != "behind")
        if self._pool[engine_id].state != "current":
            raise EngineError(f"{engine_id} failed again before it had the newest version")

    async def sleep(self) -> None:
        """All engines give up their memory, until a swap. Raises SwapError when none fell asleep.

        One that did not gets no traffic until it took a later version.
        """
        assert self._sleep_level is not None, "engines sleep only where engine.sleep_level is set"
        controls, level = [self._controls[seat.engine_id] for seat in await self._up()], self._sleep_level
        answers = await asyncio.gather(*(control.sleep(level) for control in controls), return_exceptions=True)
        failures = {}
        for control, answer in zip(controls, answers, strict=True):
            if isinstance(answer, EngineError):
                failures[control.engine_id] = answer
                self._blame(control.engine_id, f"did not fall asleep: {answer}")
            elif isinstance(answer, BaseException):
                raise answer
        await self._tell()
        if len(failures) == len(controls):
            raise SwapError(f"no engine fell asleep: {'; '.join(map(str, failures.values()))}")

    async def close(self) -> None:
        for control in self._controls.values():
            await control.close()

    async def _up(self) -> list[Seat]:
        """Waits while there is none. Raises SwapError when that takes too long."""
        try:
            async with asyncio.timeout(self._wait_s), self._changed:
                await self._changed.wait_for(lambda: self._pool.up)
        except TimeoutError:
            if not self._pool.up:
                raise SwapError(f"no engine is up, and none came back in {self._wait_s:g} s") from None
        return self._pool.up

    @asynccontextmanager
    async def _swap(self, version: int, seats: Sequence[Seat]) -> AsyncIterator[WeightSwap]:
        self._pool.begin(version)
        swap = WeightSwap(
            [self._controls[seat.engine_id] for seat in seats],
            version,
            self._mode,
            asleep=self._sleep_level is not None,
            fed=all(self._pool[seat.engine_id].fed for seat in seats),
            log=self._record,
        )
        try:
            async with swap:
                yield swap
        finally:
            self._close_swap(swap, seats)
            await self._tell()

    def _close_swap(self, swap: WeightSwap, seats: Sequence[Seat]) -> None:
        lives = {seat.engine_id: seat for seat in seats}
        for engine_id, error in swap.failures.items():
            if self._pool[engine_id].life != lives[engine_id].life:
                continue
            if engine_id in swap.blameless:
                self._pool.missed(engine_id)
            else:
                self._blame(engine_id, f"failed a swap: {error}")
        for record in swap.records:
            self._pool.took(lives[record.engine_id])
        self._pool.end()

    def _blame(self, engine_id: str, what: str) -> None:
        logger.error("%s gets no more traffic: it %s", engine_id, what)
        if self._pool.lost(engine_id):
            self.report(engine_id, what)

    async def _tell(self) -> None:
        """Brings the gateway's table to what the pool says: first who is out, then who is in."""
        async with self._changed:
            self._changed.notify_all()
        async with self._telling:
            for engine_id in list(self._shown):
                if engine_id not in self._pool.routable:
                    await self._routing.withdraw(engine_id)
                    del self._shown[engine_id]
            for engine_id in self._pool.routable:
                version = self._pool[engine_id].version
                assert version is not None
                if self._shown.get(engine_id) != (self._controls[engine_id].url, version):
                    await self._show(engine_id, version)

    async def _show(self, engine_id: str, version: int) -> None:
        url = self._controls[engine_id].url
        await self._routing.show(engine_id, url, version)
        self._shown[engine_id] = (url, version)
