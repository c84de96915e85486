"""Daemon threads for blocking calls. A call that hangs costs its own thread: it is abandoned, counted and capped.

The pools of asyncio and anyio join their threads when the process exits, so one hung environment would keep it alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

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
                "own I/O timeouts, or raise rollout.max_hung_calls"
            )

    def add(self, change: int) -> None:
        with self._lock:
            self._count += change


HUNG_TOOLS = HungCalls()
"""Tool calls abandoned after their own `timeout_s`, in this process."""


class CallThread:
    """One thread that runs blocking calls in order; thread-bound resources (sqlite3, browsers) stay usable.

    A call that outlives its timeout is abandoned with its thread: later calls are refused at once, and the thread
    ends by itself if the call ever returns.
    """

    def __init__(self, name: str, hung: HungCalls) -> None:
        self._name = name
        self._hung = hung
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
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
            raise _timed_out(what, timeout_s) from None
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
            raise _timed_out(what, timeout_s) from None

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
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
            self._started = True
        return future

    def _abandon(self, future: Future[Any]) -> None:
        with self._lock:
            self._abandoned = True
            if not future.done():
                self._counted = True
                self._hung.add(1)
        self.close()

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            result, error = None, None
            try:
                result = call()
            except Exception as raised:
                error = raised
            except BaseException as raised:  # a SystemExit would end the caller's event loop
                error = EnvironmentFault(f"the call raised {raised!r}")
                error.__cause__ = raised
            with self._lock:
                if isinstance(error, StopIteration):  # cannot be carried by an asyncio future
                    future.set_exception(EnvironmentFault(f"the call raised {error!r}"))
                elif error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(result)
                if self._counted:
                    self._counted = False
                    self._hung.add(-1)
            del result, error, future, call, item  # nothing of a call stays alive while the thread waits


def _timed_out(what: str, timeout_s: float | None) -> EnvironmentTimeout:
    return EnvironmentTimeout(f"{what} took longer than {timeout_s:g} s")
