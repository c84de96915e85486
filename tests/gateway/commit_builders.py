"""A store for the tests of group commit: it holds, fails and refuses as it is told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from gateway_builders import MemorySink, eventually

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.gateway.commits import GroupCommit
from agentrl.gateway.refusal import Refusal
from agentrl.types import JournalEntry


class Sink(MemorySink):
    """Notes its batches. Takes them when `open`; fails as `errors` says, by turns; never takes what is `poison`.

    It can be written at once as `at_once` says, by turns, and not at all after that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.batches: list[list[bytes]] = []
        self.errors: list[Exception | None] = []
        self.poison = b"poison"
        self.at_once: list[bool] = []
        self.entered = threading.Semaphore(0)

    def append(self, entries: Sequence[JournalEntry]) -> None:
        self.entered.release()
        assert self.open.wait(10)
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        if any(entry.data == self.poison for entry in entries):
            raise StoreError("it cannot be stored")
        self.batches.append([entry.data for entry in entries])
        super().append(entries)

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        if not self.at_once or not self.at_once.pop(0) or any(entry.data == self.poison for entry in entries):
            return False
        self.batches.append([entry.data for entry in entries])
        super().append(entries)
        return True

    def written(self, session_id: str = "s") -> list[bytes]:
        return [entry.data for entry in self.journaled.get(session_id, [])]

    async def hold(self, commits: GroupCommit) -> asyncio.Task[None]:
        """A first entry, held in the sink until it is opened."""
        self.open.clear()
        first = asyncio.create_task(commits.append(entry(b"first")))
        assert await asyncio.to_thread(self.entered.acquire, timeout=10)
        return first


def entry(data: bytes, session_id: str = "s") -> JournalEntry:
    return JournalEntry(session_id, "gateway", data)


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("the disk is full")


@asynccontextmanager
async def committing(sink: Sink, *, timeout_s: float = 10.0, **options: Any) -> AsyncIterator[GroupCommit]:
    commits = GroupCommit(sink, owner="gateway", timeout_s=timeout_s, **options)
    try:
        yield commits
    finally:
        sink.open.set()
        await commits.close()


async def refused(append: Any) -> tuple[int, str, bool]:
    """Status, code, and whether it may be tried again."""
    with pytest.raises(Refusal) as refusal:
        await append
    return refusal.value.status, refusal.value.code, refusal.value.retry_after is not None


async def queued(commits: GroupCommit, *entries: JournalEntry) -> list[asyncio.Task[None]]:
    """The entries, waiting behind what is held."""
    before = commits.waiting
    tasks = [asyncio.create_task(commits.append(each)) for each in entries]
    await eventually(lambda: commits.waiting == before + len(entries))
    return tasks
