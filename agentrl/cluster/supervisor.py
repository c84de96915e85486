"""Watches the parts of a run, and starts again those that died or hang, until a part has used up its restarts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from agentrl.cluster.pulse import Pulse
from agentrl.errors import AgentRLError, RunError
from agentrl.observe.faults import FaultRecord
from agentrl.supervision import Restarts, SupervisionConfig

logger = logging.getLogger(__name__)


class Part(Protocol):
    """One process, or a process with those that it started."""

    name: str
    log: Path  # that says why it died

    async def probe(self) -> tuple[bool, bool]:
        """Whether it runs, and whether it answers. Raises nothing."""
        ...

    async def lost(self) -> None:
        """It is not to be counted on any more. Tells whoever would."""
        ...

    async def restart(self) -> None:
        """Ends what is left of it and starts it anew; returns when it can be counted on again.

        Raises an AgentRLError when it does not come up.
        """
        ...


class Supervisor:
    """`run` watches; `report` is for who meets a fault before it does."""

    def __init__(
        self,
        policy: SupervisionConfig,
        parts: Sequence[Part],
        *,
        faulted: Callable[[FaultRecord], None],
        say: Callable[[str], None],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`faulted` hears of each fault once it, or the run, is over; `say` a line when one begins and when it ends."""
        self._policy = policy
        self._guards = {part.name: _Guard(part, policy, faulted, say, jitter) for part in parts}

    async def run(self) -> None:
        """Returns never. Raises RunError when a part was given up."""
        async with asyncio.TaskGroup() as group:
            for name, guard in self._guards.items():
                group.create_task(guard.run(), name=f"supervision of {name}")

    def report(self, name: str, what: str) -> None:
        """Somebody saw this part fail. `what` goes on from its name: "died"."""
        self._guards[name].report(what)

    async def raise_for_the_dead(self) -> None:
        """Raises RunError for a part that is gone now: what failed because of it is not the thing to tell."""
        for guard in self._guards.values():
            await guard.raise_if_down()


class _Guard:
    """One part's supervision."""

    def __init__(
        self,
        part: Part,
        policy: SupervisionConfig,
        faulted: Callable[[FaultRecord], None],
        say: Callable[[str], None],
        jitter: Callable[[], float],
    ) -> None:
        self._part, self._policy = part, policy
        self._faulted, self._say, self._jitter = faulted, say, jitter
        self._restarts = Restarts(policy)
        self._reported: asyncio.Queue[str] = asyncio.Queue()
        self._down: str | None = None  # what is wrong with it, while it is being started again
        self._last_well = time.monotonic()

    async def run(self) -> None:
        while True:
            what = await self._until_fault()
            await self._recover(what)

    def report(self, what: str) -> None:
        if self._down is None:
            self._reported.put_nowait(what)

    async def raise_if_down(self) -> None:
        if self._down is None and (await self._part.probe())[0]:
            return
        if self._down is not None and self._policy.max_restarts:
            return  # it is being started again, which those who count on it wait for: something else is wrong
        raise RunError(f"{self._part.name} {self._down or 'died'}; see why in {self._part.log}")

    async def _until_fault(self) -> str:
        """What is wrong, as the part's name goes on."""
        pulse = Pulse(self._policy.probe_failures)
        self._last_well = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(self._policy.probe_every_s):
                    return await self._reported.get()
            except TimeoutError:
                pass
            running, answered = await self._part.probe()
            if (what := pulse.saw(running=running, answered=answered)) is not None:
                return what
            if answered:
                self._last_well = time.monotonic()

    async def _recover(self, what: str) -> None:
        part, began = self._part, time.monotonic()
        self._down = what
        detected_s, before = began - self._last_well, self._restarts.count
        logger.error("%s %s", part.name, what)
        self._say(f"{part.name} {what}; it is started again")
        try:
            await part.lost()
            while True:
                wait_s = self._restarts.after_failure(time.monotonic(), jitter=self._jitter())
                if wait_s is None:
                    raise RunError(self._given_up(what))
                await asyncio.sleep(wait_s)
                try:
                    await part.restart()
                    break
                except AgentRLError as error:
                    what = f"did not come up again: {error}"
                    logger.error("%s %s", part.name, what)
        except BaseException as error:
            if isinstance(error, (RunError, asyncio.CancelledError)):  # given up, or the run ended first
                self._record(detected_s, None, before)
            raise
        recovered_s = time.monotonic() - began
        self._record(detected_s, recovered_s, before)
        self._say(f"{part.name} is back after {recovered_s:.1f} s")
        while not self._reported.empty():  # from before it was back
            self._reported.get_nowait()
        self._down = None

    def _record(self, detected_s: float, recovered_s: float | None, before: int) -> None:
        assert self._down is not None
        self._faulted(
            FaultRecord(
                part=self._part.name,
                what=self._down,
                detected_s=detected_s,
                recovered_s=recovered_s,
                restarts=self._restarts.count - before,
            )
        )

    def _given_up(self, what: str) -> str:
        policy, part = self._policy, self._part
        if policy.max_restarts == 0:
            return f"{part.name} {what}; see why in {part.log}, then start the run again"
        return (
            f"{part.name} {what}; it was started again {policy.max_restarts} times in {policy.window_s:g} s already "
            f"(supervision.max_restarts); see why in {part.log}"
        )
