"""One Ray actor of a run: probed one call at a time, and ended whatever it is doing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import psutil

from agentrl.cluster.handles import cause, remote
from agentrl.cluster.parts.setting import ACTOR_START_S, start_limit
from agentrl.errors import AgentRLError, RunError

RAY_ENDS_IT_S = 1.0  # longer where it is stopped or the machine is busy, and then it is killed

logger = logging.getLogger(__name__)


class Actor:
    """`make` makes the Ray actor. `handle` is the present one."""

    def __init__(self, name: str, make: Callable[[], Any], *, probe_timeout_s: float) -> None:
        self.name = name
        self.handle: Any = None
        self._make = make
        self._probe_timeout_s = probe_timeout_s
        self._process: psutil.Process | None = None  # None on another machine
        self._probing: asyncio.Task[tuple[bool, bool]] | None = None

    def begin(self) -> None:
        """Makes it; it comes up in the background."""
        self.handle = self._make()

    async def located(self) -> None:
        """Returns when it is up. Raises RunError when it does not come up."""
        async with start_limit(self.name, ACTOR_START_S):
            try:
                node, pid = await remote(self.handle.place.remote())
            except AgentRLError:
                raise
            except Exception as error:
                raise RunError(f"{self.name} did not start: {cause(error)}") from error
        with contextlib.suppress(psutil.NoSuchProcess):
            self._process = psutil.Process(pid) if node == _this_node() else None

    async def probe(self) -> tuple[bool, bool]:
        """Whether it runs, and whether it answered. A call that is late is waited for, not repeated.

        Several may ask at once, and it may be killed meanwhile.
        """
        if self._probing is None:
            self._probing = asyncio.create_task(self._probe(self.handle), name=f"probe of {self.name}")
        probing = self._probing
        await asyncio.wait({probing}, timeout=self._probe_timeout_s)
        if not probing.done():
            return True, False
        if self._probing is probing:
            self._probing = None
        return (False, False) if probing.cancelled() else probing.result()

    async def answers(self, limit_s: float) -> bool:
        """Whether the actor itself can still be asked for something."""
        try:
            async with asyncio.timeout(limit_s):
                await remote(self.handle.place.remote())
        except Exception:  # Ray says in many ways that an actor is gone
            return False
        return True

    def kill(self) -> None:
        """Also when it is stopped, or hangs."""
        import ray

        if self._probing is not None:
            self._probing.cancel()
            self._probing = None
        if self.handle is not None:
            ray.kill(self.handle)
        if self._process is not None:
            # Ray prints an alarm of its own for a process that is gone before Ray has ended it.
            with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
                self._process.wait(RAY_ENDS_IT_S)
            with contextlib.suppress(psutil.NoSuchProcess):
                self._process.kill()
            self._process = None

    async def _probe(self, handle: Any) -> tuple[bool, bool]:
        try:
            running, answered = await remote(handle.probe.remote())
        except Exception as error:  # Ray says in many ways that an actor is gone
            logger.error("a probe of %s failed: %s", self.name, cause(error))
            return False, False
        return running, answered


def _this_node() -> str:
    import ray

    return str(ray.get_runtime_context().get_node_id())
