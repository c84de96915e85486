"""Sessions that died with their run end as trajectories, so that every sampled token is counted."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from trajectories import two_turns

from agentrl.errors import TrajectoryNotFound
from agentrl.gateway.journal import CallAdded, Opened, encode
from agentrl.gateway.sealing import Sealed, seal_left_behind
from agentrl.store.memory import MemoryStore
from agentrl.types import Call, JournalEntry, Mode


def left_open(
    store: MemoryStore, session_id: str, calls: Sequence[Call], *, owner: str = "gateway", mode: Mode = "train"
):
    opened = Opened(
        session_id=session_id, key_digest=b"k", mode=mode, metadata={"group_id": "g0", "index": 1}, created_at=5.0
    )
    events = [opened, *(CallAdded.to(calls[:index], call) for index, call in enumerate(calls))]
    store.append([JournalEntry(session_id, owner, encode(event)) for event in events])


async def test_what_an_open_session_had_sampled_is_kept_with_its_group_under_the_reason():
    store, whole = MemoryStore(), two_turns("s0").build()
    left_open(store, "s0", whole.calls)
    assert await seal_left_behind(store, "gateway", "cancelled", now=9.0) == Sealed(sessions=1, tokens=32)
    found = store.get("s0")
    assert (found.stop_reason, found.metadata, found.mode) == ("cancelled", {"group_id": "g0", "index": 1}, "train")
    assert (found.calls, found.rows) == (whole.calls, whole.rows)
    assert (found.created_at, found.finished_at, found.reward) == (5.0, 9.0, None)
    assert list(store.journal("gateway")) == []


async def test_a_session_that_never_called_leaves_nothing():
    store = MemoryStore()
    left_open(store, "s0", [])
    assert await seal_left_behind(store, "gateway", "cancelled", now=9.0) == Sealed()
    assert (store.count(), list(store.journal("gateway"))) == (0, [])


async def test_sessions_of_evaluations_are_ended_too_and_those_of_other_gateways_are_not():
    store, calls = MemoryStore(), two_turns("s0").build().calls
    left_open(store, "s0", calls, mode="eval")
    left_open(store, "s1", calls, owner="another")
    await seal_left_behind(store, "gateway", "cancelled", now=9.0)
    assert [trajectory.mode for trajectory in store.iterate()] == ["eval"]
    assert [session_id for session_id, _ in store.journal("another")] == ["s1"]


async def test_a_damaged_journal_stays_and_ends_nobody_elses_session(caplog: pytest.LogCaptureFixture):
    store = MemoryStore()
    store.append([JournalEntry("broken", "gateway", b"\xc1")])
    left_open(store, "s1", two_turns("s1").build().calls)
    with caplog.at_level(logging.ERROR):
        sealed = await seal_left_behind(store, "gateway", "cancelled", now=9.0)
    assert (sealed.sessions, store.count()) == (1, 1)
    assert "session broken cannot be ended" in caplog.text
    assert store.has_journal("broken")
    with pytest.raises(TrajectoryNotFound):
        store.get("broken")


async def test_to_do_it_again_changes_nothing():
    store = MemoryStore()
    left_open(store, "s0", two_turns("s0").build().calls)
    await seal_left_behind(store, "gateway", "cancelled", now=9.0)
    assert await seal_left_behind(store, "gateway", "cancelled", now=99.0) == Sealed()
    assert store.get("s0").finished_at == 9.0
