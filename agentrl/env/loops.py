"""An event loop in a thread of its own, for one async environment: when it spins, it stalls nobody but itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from agentrl.env.ending import Abandoned, absorb, end_soon
from agentrl.env.threads import HungCalls, Outcome, timed_out
from agentrl.errors import EnvironmentFault

log = logging.getLogger(__name__)

GRACE_S = 0.25  # for the loop to answer after a call was cancelled
LEAVE_S = 5.0  # for the environment's own tasks to end once they are cancelled


class LoopThread:
    """Runs coroutines of one environment. What it opens on the loop lives from call to call, also in between.

    A call that outlives its timeout is cancelled. When the loop does not even answer then, a coroutine spins or
    blocks: the loop is abandoned, and Python code in it ended by an exception (`agentrl.env.ending`).
    """

    def __init__(self, name: str, hung: HungCalls) -> None:
        self._hung = hung
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name=f"{name}-loop", daemon=True)
        self._lock = threading.Lock()
        self._closing = False
        self._abandoned = False
        self._counted = False

    @property
    def abandoned(self) -> bool:
        """Whether the loop hung in a call; nothing more can be called."""
        return self._abandoned

    async def run(self, call: Callable[[], Awaitable[Any]], timeout_s: float | None, what: str) -> Any:
        """Raises EnvironmentTimeout after `timeout_s` seconds, else whatever `call` raises: a CancelledError of its own
        and a SystemExit come as EnvironmentFault. Cancelling cancels it."""
        if self._abandoned:
            raise EnvironmentFault(f"{what} was not called: an earlier call of the same environment still hangs")
        loop = self._running_loop()
        running = asyncio.run_coroutine_threadsafe(_captured(call), loop)
        try:
            async with asyncio.timeout(timeout_s) as scope:
                result, error = await asyncio.wrap_future(running)
        except TimeoutError:
            if not scope.expired():
                raise
            await self._abandon_if_stuck()
            raise timed_out(what, timeout_s) from None
        except asyncio.CancelledError:
            await self._abandon_if_stuck()
            raise
        if isinstance(error, asyncio.CancelledError):
            raise EnvironmentFault(f"{what} cancelled itself") from error
        if isinstance(error, StopIteration) or not isinstance(error, Exception | None):
            raise EnvironmentFault(f"{what} raised {error!r}") from error
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """Lets the thread end, with what still runs on the loop cancelled."""
        self._closing = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it is closed already
                self._loop.call_soon_threadsafe(self._loop.stop)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._hung.check()
            self._loop = asyncio.new_event_loop()
            self._thread.start()
        return self._loop

    async def _abandon_if_stuck(self) -> None:
        assert self._loop is not None
        answer: Future[None] = Future()
        self._ask(answer)
        try:
            async with asyncio.timeout(GRACE_S):
                await asyncio.shield(asyncio.wrap_future(answer))
        except TimeoutError:
            with self._lock:
                self._abandoned = True
                if not answer.done():
                    self._counted = True
                    self._hung.add(1)
                    end_soon(self._thread, self._lock, lambda: self._counted, lambda: self._ask(answer))

    def _ask(self, answer: Future[None]) -> None:
        """A round later, so that what was cancelled has had its turn to clean up."""
        loop = self._loop
        assert loop is not None
        with contextlib.suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(loop.call_soon, self._answer, answer)

    def _answer(self, answer: Future[None]) -> None:
        """On the loop: it is free again. An Abandoned may end this at any step; then it is asked for once more."""
        with self._lock:
            with contextlib.suppress(Abandoned):
                absorb()
            if not answer.done():
                answer.set_result(None)
            self._count_out()

    def _count_out(self) -> None:
        """Under the lock. It hangs no more."""
        if self._counted:
            self._counted = False
            self._hung.add(-1)

    def _left(self) -> None:
        with self._lock:
            self._count_out()

    def _work(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        while not self._closing:
            try:
                self._loop.run_forever()
            except BaseException as error:  # of a background task: asyncio lets a SystemExit through
                log.warning("a task of %s raised %r", self._thread.name, error)
        try:
            self._loop.run_until_complete(_end_tasks())
        except BaseException as error:
            log.warning("%s did not end its tasks: %r", self._thread.name, error)
        finally:
            self._loop.close()
            with contextlib.suppress(Abandoned):  # of two tries it can end one: the next is some time after it
                self._left()
            self._left()


async def _captured(call: Callable[[], Awaitable[Any]]) -> Outcome:
    try:
        return await call(), None
    except BaseException as error:
        return None, error


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=LEAVE_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
