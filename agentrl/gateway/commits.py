"""Group commit: what gathers while one transaction runs goes into the next, so that under load one carries many calls
and a lone call waits for one commit, not for a timer. Trajectories are saved in the same transactions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.gateway.in_loop import InLoop
from agentrl.gateway.journal import Event, encode
from agentrl.gateway.one_thread import OneThread
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.types import JournalEntry, Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")

MAX_BATCH = 512
"""Entries and trajectories of one transaction."""
MAX_SAVES = 8
"""Trajectories of one transaction: each is as much work as some calls, and calls wait for the transaction to end."""
MAX_WAITING_BYTES = 256 * 2**20
CLOSE_S = 5.0
"""How long a gateway that stops waits for a store that takes nothing: who stops it does not wait for ever either."""
RETRY_S = 1.0
"""How long what the store did not take waits for company before it is tried again."""


class _Waiter:
    """Who queued `left` items and hears when all of them are durable, or of the first that is not."""

    __slots__ = ("done", "left")

    def __init__(self, items: int) -> None:
        self.left = items
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(self, error: Exception | None) -> None:
        self.left -= 1
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        elif not self.left:
            self.done.set_result(None)


class _Item(NamedTuple):
    """An entry or a trajectory on its way."""

    work: JournalEntry | Trajectory
    waiter: _Waiter | None  # None for an entry that is owed

    @property
    def size(self) -> int:
        """Bytes of an entry. Trajectories are bounded by the sessions that there may be."""
        return len(self.work.data) if isinstance(self.work, JournalEntry) else 0

    @property
    def awaited(self) -> bool:
        return self.waiter is not None and not self.waiter.done.done()


class GroupCommit:
    """The one writer of a gateway. Entries of its journal become durable in the order in which they came.

    One that the store did not take for now is refused, and owed all the same: it is written ahead of what comes later,
    so that no session's journal has a hole. Entries of `max_bytes` in all wait or are owed; then no more are queued. A
    trajectory is never owed: who saves it tries again.
    """

    def __init__(
        self, sink: TrajectorySink, *, owner: str, timeout_s: float, max_bytes: int = MAX_WAITING_BYTES
    ) -> None:
        self._sink = sink
        self._owner = owner
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._bytes = 0  # of what waits, is under way or is owed
        self._queue: deque[_Item] = deque()
        self._in_flight: list[_Item] = []
        self._ending: set[str] = set()  # sessions of which nothing is owed any more
        self._wake = asyncio.Event()
        self._batch_over = asyncio.Event()
        self._in_loop = InLoop(sink)
        self._thread = OneThread("journal")
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Entries and trajectories that are not durable yet."""
        return len(self._queue) + len(self._in_flight)

    def entry(self, session_id: str, event: Event) -> JournalEntry:
        """Raises Refusal (500) for an event that no store takes."""
        try:
            return JournalEntry(session_id, self._owner, encode(event))
        except StoreError as error:
            raise _refusal(session_id, error) from error

    def queue(self, *entries: JournalEntry) -> Coroutine[Any, Any, None]:
        """Entries of one session. What is returned is to be awaited: it ends when all of them are durable.

        Raises Refusal (503 `store_slow`) at once, with nothing queued, when too much waits or the gateway stops.

        Awaiting raises Refusal: 503 `store_slow` when it takes more than `timeout_s` and 503 `store_failed` when the
        store is out of reach (they are written as soon as they can be, for all that), 500 `store_refused` for one that
        it will never take.
        """
        size = sum(len(entry.data) for entry in entries)
        if self._closed or (self._bytes and self._bytes + size > self._max_bytes):
            why = "the gateway is stopping" if self._closed else f"{self._bytes} bytes wait for the store already"
            raise Refusal(503, "store_slow", f"{why}; ask again", retry_after=5)
        self._bytes += size
        return self._durable(self._put(*entries), entries[0].session_id)

    async def append(self, *entries: JournalEntry) -> None:
        """Queues entries of one session, and returns when they are durable. Raises Refusal as `queue` does."""
        await self.queue(*entries)

    async def save(self, trajectory: Trajectory) -> None:
        """Saves it in the next transaction, after `end` of its session. Returns when it is durable, however long that
        takes. Raises what the store raises, and StoreUnavailable when the gateway stops first.
        """
        if self._closed:
            raise StoreUnavailable("the gateway is stopping")
        await self._put(trajectory).done

    async def between(self, write: Callable[..., T], *arguments: Any) -> T:
        """Runs another write in the writer's thread, between two transactions: the store has one writer at a time.

        Raises what the write raises.
        """
        return await self._thread.run(partial(write, *arguments))

    async def end(self, session_id: str) -> None:
        """Nothing of this session is written after this returns: to be called before it is saved or forgotten.

        What is under way is waited for, what is owed is dropped. Raises Refusal (503) when that takes too long.
        """
        self._ending.add(session_id)
        try:
            async with asyncio.timeout(self._timeout_s):
                while self._left(session_id):
                    self._batch_over.clear()
                    await self._batch_over.wait()
        except TimeoutError:
            raise self._too_slow(session_id) from None
        finally:
            self._ending.discard(session_id)

    async def close(self) -> None:
        """Waits some seconds until all is durable; what comes later is refused."""
        self._closed = True
        if self._writer is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(self._timeout_s, CLOSE_S)):
                    self._wake.set()  # what is owed does not wait for company any more
                    while self.waiting and not self._writer.done():
                        self._batch_over.clear()
                        await self._batch_over.wait()
            self._writer.cancel()
            await asyncio.wait([self._writer])
        if self.waiting:
            logger.error("%d events were not journaled when the gateway stopped", self.waiting)
        for item in (*self._in_flight, *self._queue):
            if isinstance(item.work, Trajectory) and item.waiter is not None:
                item.waiter.settle(StoreUnavailable("the gateway stopped before it was saved"))
        self._thread.close()

    def _put(self, *work: JournalEntry | Trajectory) -> _Waiter:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="journal")
            self._writer.add_done_callback(_report)
        waiter = _Waiter(len(work))
        self._queue.extend(_Item(each, waiter) for each in work)
        self._wake.set()
        return waiter

    async def _durable(self, waiter: _Waiter, session_id: str) -> None:
        give_up = partial(self._give_up, waiter, session_id)
        timer = asyncio.get_running_loop().call_later(self._timeout_s, give_up)
        try:
            await waiter.done
        finally:
            timer.cancel()

    def _give_up(self, waiter: _Waiter, session_id: str) -> None:
        """The entries are written all the same."""
        if not waiter.done.done():
            waiter.done.set_exception(self._too_slow(session_id))

    def _too_slow(self, session_id: str) -> Refusal:
        message = f"the store did not take session {session_id} in {self._timeout_s:g} s; ask again"
        return Refusal(503, "store_slow", message, retry_after=5)

    async def _write(self) -> None:
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            self._in_flight = self._next_batch()
            errors = await self._commit([item.work for item in self._in_flight])
            owed = self._settle(self._in_flight, errors)
            self._in_flight = []
            self._queue.extendleft(reversed(owed))
            self._batch_over.set()
            if owed and (len(owed) == len(self._queue) or len(owed) == MAX_BATCH):  # else others are to hear of it too
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), RETRY_S)

    def _next_batch(self) -> list[_Item]:
        batch: list[_Item] = []
        saves = 0
        while self._queue and len(batch) < MAX_BATCH:
            if isinstance(self._queue[0].work, Trajectory):
                if saves == MAX_SAVES:
                    break
                saves += 1
            batch.append(self._queue.popleft())
        return batch

    async def _commit(self, works: Sequence[JournalEntry | Trajectory]) -> list[Exception | None]:
        """What became of each. A batch that is refused for good is tried one by one, for one may spoil it for all.

        None is written after one that is owed, so that they keep their order.
        """
        if self._in_loop.write(works):
            return [None] * len(works)
        try:
            await self._thread.run(self._transaction(works))
        except StoreUnavailable as error:
            return [error] * len(works)
        except Exception as error:  # a fault of the store is no reason for the writer to die
            if len(works) == 1:
                return [error]
            outcomes: list[Exception | None] = []
            while len(outcomes) < len(works) and not (outcomes and isinstance(outcomes[-1], StoreUnavailable)):
                outcomes += await self._commit([works[len(outcomes)]])
            return outcomes + outcomes[-1:] * (len(works) - len(outcomes))
        return [None] * len(works)

    def _transaction(self, works: Sequence[JournalEntry | Trajectory]) -> Callable[[], None]:
        entries = [work for work in works if isinstance(work, JournalEntry)]
        trajectories = [work for work in works if isinstance(work, Trajectory)]
        if not trajectories:
            return partial(self._sink.append, entries)
        if len(works) == 1:
            return partial(self._sink.save, trajectories[0])
        return partial(self._sink.write, entries, trajectories)

    def _settle(self, items: Sequence[_Item], errors: Sequence[Exception | None]) -> list[_Item]:
        """Tells who waits. Returns what is owed."""
        owed = []
        for item, error in zip(items, errors, strict=True):
            session_id = item.work.session_id
            if isinstance(item.work, Trajectory):
                if item.waiter is not None:
                    item.waiter.settle(error)
                continue
            if item.waiter is not None:
                item.waiter.settle(None if error is None else _refusal(session_id, error))
            if isinstance(error, StoreUnavailable) and session_id not in self._ending:
                owed.append(_Item(item.work, None))
                continue
            if error is not None:
                logger.error("an event of session %s is not in its journal: %s", session_id, error)
            self._bytes -= item.size
        return owed

    def _left(self, session_id: str) -> bool:
        """Whether anything of this session is under way, after dropping what nobody waits for."""
        kept: deque[_Item] = deque()
        for item in self._queue:
            if item.work.session_id != session_id or item.awaited:
                kept.append(item)
            else:
                self._bytes -= item.size
        self._queue = kept
        return any(item.work.session_id == session_id for item in (*self._in_flight, *kept))


def _refusal(session_id: str, error: Exception) -> Refusal:
    if isinstance(error, StoreUnavailable):
        message = f"the store did not take session {session_id}: {error}; ask again"
        return Refusal(503, "store_failed", message, retry_after=5)
    return Refusal(500, "store_refused", f"the store does not take session {session_id}: {error}")


def _report(writer: asyncio.Task[None]) -> None:
    if not writer.cancelled() and (error := writer.exception()) is not None:
        logger.critical("the journal's writer died: %s", error, exc_info=error)
