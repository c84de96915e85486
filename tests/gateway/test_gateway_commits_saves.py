"""Trajectories are saved by the group commit, with the events of other sessions, and fail alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from commit_builders import Sink, committing, entry, queued, refused, unavailable
from gateway_builders import eventually

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.gateway import commits as commits_module
from agentrl.gateway.commits import GroupCommit
from agentrl.types import JournalEntry, Trajectory


class Together(Sink):
    """Notes what each transaction held; refuses the trajectory `bad`."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: list[tuple[list[bytes], list[str]]] = []

    def append(self, entries: Sequence[JournalEntry]) -> None:
        super().append(entries)
        self.transactions.append(([each.data for each in entries], []))

    def save(self, trajectory: Trajectory) -> None:
        self.write((), (trajectory,))

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        if any(trajectory.session_id == "bad" for trajectory in trajectories):
            raise StoreError("it cannot be stored")
        super().append(entries)
        for trajectory in trajectories:
            super().save(trajectory)
        self.transactions.append(([each.data for each in entries], [each.session_id for each in trajectories]))


async def saving(commits: GroupCommit, *session_ids: str) -> list[asyncio.Task[None]]:
    """Trajectories, waiting behind what is held."""
    before = commits.waiting
    tasks = [asyncio.create_task(commits.save(Trajectory(session_id=each))) for each in session_ids]
    await eventually(lambda: commits.waiting == before + len(session_ids))
    return tasks


async def test_a_trajectory_is_in_the_store_when_save_returns() -> None:
    sink = Together()
    async with committing(sink) as commits:
        await commits.save(Trajectory(session_id="s"))
        assert list(sink.saved) == ["s"]


async def test_events_and_trajectories_that_gather_share_a_transaction() -> None:
    sink = Together()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        more = await queued(commits, entry(b"1", "a"))
        more += await saving(commits, "b", "c")
        more += await queued(commits, entry(b"2", "d"))
        sink.open.set()
        await asyncio.gather(first, *more)
        assert sink.transactions == [([b"first"], []), ([b"1", b"2"], ["b", "c"])]


async def test_a_transaction_saves_a_bounded_number_of_trajectories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "MAX_SAVES", 2)
    sink = Together()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        more = await saving(commits, "a", "b", "c")
        more += await queued(commits, entry(b"1", "d"))
        sink.open.set()
        await asyncio.gather(first, *more)
        assert sink.transactions == [([b"first"], []), ([], ["a", "b"]), ([b"1"], ["c"])]


async def test_a_trajectory_that_is_refused_for_good_fails_alone() -> None:
    sink = Together()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        [event] = await queued(commits, entry(b"1", "a"))
        bad, good = await saving(commits, "bad", "good")
        sink.open.set()
        await asyncio.gather(first, event, good)
        with pytest.raises(StoreError, match="it cannot be stored"):
            await bad
        assert (sink.written("a"), list(sink.saved)) == ([b"1"], ["good"])


async def test_a_trajectory_that_the_store_did_not_take_for_now_is_not_owed() -> None:
    """Its session is saved anew, when somebody asks for that."""
    sink = Together()
    async with committing(sink) as commits:
        sink.errors = [unavailable()]
        with pytest.raises(StoreUnavailable):
            await commits.save(Trajectory(session_id="s"))
        assert commits.waiting == 0
        await commits.save(Trajectory(session_id="s"))
        assert list(sink.saved) == ["s"]


async def test_what_is_under_way_of_a_session_ends_with_its_trajectory() -> None:
    sink = Together()
    async with committing(sink) as commits:
        first = await sink.hold(commits)
        [save] = await saving(commits, "s")
        ending = asyncio.create_task(commits.end("s"))
        sink.open.set()
        await ending
        assert save.done()
        await asyncio.gather(first, save)


async def test_a_trajectory_is_refused_when_the_gateway_stops_before_it_is_saved() -> None:
    sink = Together()
    async with committing(sink, timeout_s=0.05) as commits:
        first = await sink.hold(commits)
        [save] = await saving(commits, "s")
        await refused(first)
        await commits.close()
        with pytest.raises(StoreUnavailable, match="the gateway stopped before it was saved"):
            await save
        with pytest.raises(StoreUnavailable, match="the gateway is stopping"):
            await commits.save(Trajectory(session_id="late"))
