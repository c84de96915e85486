"""An agent program, called from the event loop: in threads of its own, so that it can block nobody but itself."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.env.contract import raised
from agentrl.env.loops import LoopThread
from agentrl.env.policy import Policy
from agentrl.env.program import Program
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import AgentRLError, ConfigError, EnvironmentFault
from agentrl.types import Task

LEAVE_S = 10.0
"""How long a program that was cancelled may take to end what it has started."""


class ProgramHost:
    """Makes a program, runs it, grades it and closes it.

    Each raises EnvironmentFault for what the program raises, except that `run` lets errors of the policy through, such
    as SessionLimitReached.
    """

    def __init__(
        self, made_by: type[Program], kwargs: Mapping[str, Any], *, name: str, timeout_s: float, hung: HungCalls
    ) -> None:
        self._make = functools.partial(made_by, **kwargs)
        self._name = name
        self._timeout_s = timeout_s
        self._thread = CallThread(f"agentrl-program-{name}", hung)
        self._loop = LoopThread(f"agentrl-program-{name}", hung)
        self._program: Program | None = None
        self._made: Program | None = None  # by a constructor, also when nobody waited for it any more
        self._ended: asyncio.Event | None = None  # of the run, once there is one

    async def make(self) -> None:
        self._program = await self._guarded("__init__", self._thread, self._construct, self._timeout_s)

    def _construct(self) -> Program:
        self._made = self._make()
        return self._made

    def _close_made(self) -> None:
        if self._made is not None and not self._made.is_async("close"):
            self._made.close()

    async def run(self, task: Task, policy: Policy) -> Any:
        """What the program's `run` gives. It has no time limit of its own: cancel it."""
        assert self._program is not None
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        self._ended = ended

        def end() -> None:
            with contextlib.suppress(RuntimeError):  # the worker's loop is closed: nobody waits
                loop.call_soon_threadsafe(ended.set)

        return await self._call("run", task, policy, timeout_s=None, ended=end, let_through=AgentRLError)

    async def stop(self) -> None:
        """Returns when a cancelled run has ended, or does not in time."""
        if self._ended is None or self._thread.abandoned or self._loop.abandoned:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._ended.wait()

    async def grade(self, task: Task, result: Any) -> Any:
        assert self._program is not None
        limit = self._program.grade_timeout_s
        return await self._call("grade", task, result, timeout_s=self._timeout_s if limit is None else limit)

    @property
    def grades(self) -> bool:
        """Whether the program has a `grade` of its own."""
        return self._program is not None and self._program.grades

    async def close(self) -> None:
        """A program whose call was cut short is closed when that has ended; one whose loop hangs, not at all."""
        try:
            if self._program is None:
                self._thread.afterwards(self._close_made)
            elif self._loop.abandoned:
                return
            elif not self._thread.abandoned or self._program.is_async("close"):
                await self._call("close", timeout_s=self._timeout_s)
            else:
                self._thread.afterwards(self._program.close)
        finally:
            self._thread.close()
            self._loop.close()

    async def _call(
        self,
        method: str,
        *args: Any,
        timeout_s: float | None,
        ended: Callable[[], None] = lambda: None,
        let_through: type[AgentRLError] = EnvironmentFault,
    ) -> Any:
        assert self._program is not None
        bound = functools.partial(getattr(self._program, method), *args)
        on_loop = self._program.is_async(method)
        tracked = _async_then(bound, ended) if on_loop else _then(bound, ended)
        return await self._guarded(method, self._loop if on_loop else self._thread, tracked, timeout_s, let_through)

    async def _guarded(
        self,
        method: str,
        thread: CallThread | LoopThread,
        call: Callable[[], Any],
        timeout_s: float | None,
        let_through: type[AgentRLError] = EnvironmentFault,
    ) -> Any:
        try:
            return await thread.run(call, timeout_s, f"{self._name}.{method}")
        except (let_through, ConfigError):
            raise
        except Exception as error:
            raise raised(self._name, method, error) from error


def _then(call: Callable[[], Any], ended: Callable[[], None]) -> Callable[[], Any]:
    def run() -> Any:
        try:
            return call()
        finally:
            ended()

    return run


def _async_then(call: Callable[[], Any], ended: Callable[[], None]) -> Callable[[], Any]:
    async def run() -> Any:
        try:
            return await call()
        finally:
            ended()

    return run
