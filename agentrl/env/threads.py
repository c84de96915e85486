"""Daemon threads for blocking calls. A call that hangs costs its own thread: it is abandoned, counted and capped.

The pools of asyncio and anyio join their threads when the process exits, so one hung environment would keep it alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from agentrl.env.ending import Abandoned, absorb, end_soon
from agentrl.errors import EnvironmentFault, EnvironmentTimeout


class HungCalls:
    """How many abandoned calls still run, and how many may."""

    def __init__(self, limit: int = 64) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    def check(self) -> None:
        """Raises EnvironmentFault when another hung call would be one too many."""
        if self._count >= self.limit:
            raise EnvironmentFault(
                f"{self._count} environment calls hang in their threads, the most allowed; give the environment's "
                'own I/O timeouts, set rollout.isolation = "process", or raise rollout.max_hung_calls'
            )

    def add(self, change: int) -> None:
        with self._lock:
            self._count += change


HUNG_TOOLS = HungCalls()
"""Tool calls abandoned after their own `timeout_s`, in this process."""

SWITCH_S = 0.001  # measured by bench/isolation; half of it helps no further

Outcome = tuple[Any, BaseException | None]
"""What a call returned, or what it raised."""


class CallThread:
    """One thread that runs blocking calls in order; thread-bound resources (sqlite3, browsers) stay usable.

    A call that outlives its timeout is abandoned with its thread: later calls are refused at once. Python code is
    ended by an exception (`agentrl.env.ending`); the thread of a call that sits in C code ends if it ever returns.
    """

    def __init__(self, name: str, hung: HungCalls) -> None:
        self._hung = hung
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._lock = threading.Lock()
        self._started = False
        self._abandoned = False
        self._counted = False

    @property
    def abandoned(self) -> bool:
        """Whether a call did not return in time; nothing more can be called."""
        return self._abandoned

    async def run(self, call: Callable[[], Any], timeout_s: float | None, what: str) -> Any:
        """Raises EnvironmentTimeout after `timeout_s` seconds, else whatever `call` raises. Cancelling abandons it."""
        future = self._submit(call, what)
        try:
            async with asyncio.timeout(timeout_s) as scope:
                return await asyncio.wrap_future(future)
        except TimeoutError:
            if not scope.expired():
                raise
            self._abandon(future)
            raise timed_out(what, timeout_s) from None
        except asyncio.CancelledError:
            self._abandon(future)
            raise

    def run_blocking(self, call: Callable[[], Any], timeout_s: float | None, what: str) -> Any:
        """`run` for callers without an event loop."""
        future = self._submit(call, what)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # its own TimeoutError, or it returned just now
                return future.result()
            self._abandon(future)
            raise timed_out(what, timeout_s) from None

    def afterwards(self, call: Callable[[], Any]) -> None:
        """A last call for when the abandoned one has ended, if it ever does. Nobody waits for it."""
        self._calls.put((Future(), call))

    def close(self) -> None:
        """Lets the thread end after the calls it was given."""
        self._calls.put(None)

    def _submit(self, call: Callable[[], Any], what: str) -> Future[Any]:
        if self._abandoned:
            raise EnvironmentFault(f"{what} was not called: an earlier call of the same environment still hangs")
        if not self._started:
            self._hung.check()
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._calls.put((future, lambda: context.run(call)))
        if not self._started:
            self._thread.start()
            self._started = True
        return future

    def _abandon(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned = True
            if not future.done():
                self._counted = True
                self._hung.add(1)
                end_soon(self._thread, self._lock, lambda: self._counted)

    def _work(self) -> None:
        more = True
        while more:
            with contextlib.suppress(Abandoned):  # one that was late: several threads were told to end at once
                more = self._work_once()

    def _work_once(self) -> bool:
        """Nothing of a call stays alive when this returns. False when it was the last one."""
        item = self._calls.get()
        if item is None:
            return False
        future, call = item
        if future.set_running_or_notify_cancel():
            self._run(future, call)
        return True

    def _run(self, future: Future[Any], call: Callable[[], Any]) -> None:
        """Abandoned may be raised anywhere in here until `_settle` is through."""
        outcome: Outcome | None = None
        while True:
            try:
                if outcome is None:
                    outcome = _outcome(call)
                self._settle(future, outcome)
            except Abandoned as error:
                outcome = outcome or (None, error)
            else:
                return

    def _settle(self, future: Future[Any], outcome: Outcome) -> None:
        with self._lock:
            with contextlib.suppress(Abandoned):
                absorb()
            if self._counted:
                self._counted = False
                self._hung.add(-1)
            result, error = outcome
            if future.done():
                return
            if error is None:
                future.set_result(result)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            else:  # a SystemExit would end the caller's event loop, a StopIteration cannot be carried by a future
                fault = EnvironmentFault(f"the call raised {error!r}")
                fault.__cause__ = error
                future.set_exception(fault)


def _outcome(call: Callable[[], Any]) -> Outcome:
    try:
        return call(), None
    except BaseException as error:
        return None, error


def take_short_turns() -> None:
    """Threads of this process that want the interpreter get it after 1 ms, not 5: that is what each sibling of an
    environment that spins waits for at every turn. It costs nothing while none keeps the interpreter busy.
    """
    sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_S))


def timed_out(what: str, timeout_s: float | None) -> EnvironmentTimeout:
    return EnvironmentTimeout(f"{what} took longer than {timeout_s:g} s")
