"""Group commit: what gathers while one transaction runs goes into the next, so that under load one carries many calls
and a lone call waits for one commit, not for a timer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.gateway.journal import Event, encode
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.types import JournalEntry

logger = logging.getLogger(__name__)

MAX_BATCH = 512
"""Entries of one transaction."""
RETRY_S = 1.0
"""How long what the store did not take waits for company before it is tried again."""


class _Item:
    """An entry on its way. `done` is None, or ended, when nobody waits for it."""

    __slots__ = ("done", "entry")

    def __init__(self, entry: JournalEntry, done: asyncio.Future[None] | None) -> None:
        self.entry = entry
        self.done = done

    def settle(self, refusal: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            if refusal is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(refusal)


class GroupCommit:
    """The one writer of a gateway's journal. Entries become durable in the order in which they came.

    One that the store did not take for now is refused, and owed all the same: it is written ahead of what comes later,
    so that no session's journal has a hole. At most `max_waiting` entries wait or are owed.
    """

    def __init__(self, sink: TrajectorySink, *, owner: str, timeout_s: float, max_waiting: int = 10_000) -> None:
        self._sink = sink
        self._owner = owner
        self._timeout_s = timeout_s
        self._room = asyncio.Semaphore(max_waiting)
        self._queue: deque[_Item] = deque()
        self._in_flight: list[_Item] = []
        self._ending: set[str] = set()  # sessions of which nothing is owed any more
        self._wake = asyncio.Event()
        self._batch_over = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Entries that are not durable yet."""
        return len(self._queue) + len(self._in_flight)

    def entry(self, session_id: str, event: Event) -> JournalEntry:
        """Raises Refusal (500) for an event that no store takes."""
        try:
            return JournalEntry(session_id, self._owner, encode(event))
        except StoreError as error:
            raise _refusal(session_id, error) from error

    async def append(self, entry: JournalEntry) -> None:
        """Returns when the entry is durable.

        Raises Refusal: 503 `store_slow` when that takes more than `timeout_s` and 503 `store_failed` when the store
        is out of reach (it is written as soon as it can be, for all that), 500 `store_refused` when it never will be.
        """
        if self._closed:
            raise Refusal(503, "store_failed", "the gateway is stopping; ask again", retry_after=5)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="journal")
            self._writer.add_done_callback(_report)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._room.acquire()
                item = _Item(entry, asyncio.get_running_loop().create_future())
                self._queue.append(item)
                self._wake.set()
                assert item.done is not None
                await item.done
        except TimeoutError:
            message = f"the store did not take session {entry.session_id} in {self._timeout_s:g} s; ask again"
            raise Refusal(503, "store_slow", message, retry_after=5) from None

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
            message = f"the store did not take session {session_id} in {self._timeout_s:g} s; ask again"
            raise Refusal(503, "store_slow", message, retry_after=5) from None
        finally:
            self._ending.discard(session_id)

    async def close(self) -> None:
        """Waits at most `timeout_s` until all is durable; later entries are refused."""
        self._closed = True
        if self._writer is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._timeout_s):
                    self._wake.set()  # what is owed does not wait for company any more
                    while self.waiting and not self._writer.done():
                        self._batch_over.clear()
                        await self._batch_over.wait()
            self._writer.cancel()
            await asyncio.wait([self._writer])
        if self.waiting:
            logger.error("%d events were not journaled when the gateway stopped", self.waiting)
        self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        while True:
            if not self._queue:
                self._wake.clear()
                await self._wake.wait()
            self._in_flight = list(islice(self._queue, MAX_BATCH))
            for _ in self._in_flight:
                self._queue.popleft()
            errors = await self._commit([item.entry for item in self._in_flight])
            owed = self._settle(self._in_flight, errors)
            self._in_flight = []
            self._queue.extendleft(reversed(owed))
            self._batch_over.set()
            if owed and len(owed) == len(self._queue):
                self._wake.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), RETRY_S)

    async def _commit(self, entries: Sequence[JournalEntry]) -> list[Exception | None]:
        """What became of each. A batch that is refused for good is tried one by one, for one may spoil it for all.

        None is written after one that is owed, so that they keep their order.
        """
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._sink.append, entries)
        except StoreUnavailable as error:
            return [error] * len(entries)
        except Exception as error:  # a fault of the store is no reason for the writer to die
            if len(entries) == 1:
                return [error]
            outcomes: list[Exception | None] = []
            while len(outcomes) < len(entries) and not (outcomes and isinstance(outcomes[-1], StoreUnavailable)):
                outcomes += await self._commit([entries[len(outcomes)]])
            return outcomes + outcomes[-1:] * (len(entries) - len(outcomes))
        return [None] * len(entries)

    def _settle(self, items: Sequence[_Item], errors: Sequence[Exception | None]) -> list[_Item]:
        """Tells who waits. Returns what is owed."""
        owed = []
        for item, error in zip(items, errors, strict=True):
            session_id = item.entry.session_id
            item.settle(None if error is None else _refusal(session_id, error))
            if isinstance(error, StoreUnavailable) and session_id not in self._ending:
                owed.append(_Item(item.entry, None))
                continue
            if error is not None:
                logger.error("an event of session %s is not in its journal: %s", session_id, error)
            self._room.release()
        return owed

    def _left(self, session_id: str) -> bool:
        """Whether anything of this session is under way, after dropping what nobody waits for."""
        kept = deque(
            item
            for item in self._queue
            if item.entry.session_id != session_id or (item.done is not None and not item.done.done())
        )
        for _ in range(len(self._queue) - len(kept)):
            self._room.release()
        self._queue = kept
        return any(item.entry.session_id == session_id for item in (*self._in_flight, *kept))


def _refusal(session_id: str, error: Exception) -> Refusal:
    if isinstance(error, StoreUnavailable):
        message = f"the store did not take session {session_id}: {error}; ask again"
        return Refusal(503, "store_failed", message, retry_after=5)
    return Refusal(500, "store_refused", f"the store does not take session {session_id}: {error}")


def _report(writer: asyncio.Task[None]) -> None:
    if not writer.cancelled() and (error := writer.exception()) is not None:
        logger.critical("the journal's writer died: %s", error, exc_info=error)
