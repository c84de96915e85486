"""The write-ahead journal: what a session has done is there when the process that held it is gone."""

from __future__ import annotations

import itertools
import math
import signal
import tracemalloc
from collections.abc import Iterator

import pytest
from scripts import start
from trajectories import two_turns

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store.base import TrajectoryStore
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry


def happened(session_id: str, *events: bytes, owner: str = "gateway") -> list[JournalEntry]:
    return [JournalEntry(session_id, owner, event) for event in events]


def test_journaled_sessions_come_back_in_the_order_in_which_they_were_opened(store: TrajectoryStore) -> None:
    store.append([*happened("b", b"b0"), *happened("a", b"a0", b"\x00\xff")])
    store.append(happened("b", b"b1"))
    store.append([])
    store.append([*happened("c", b""), *happened("a", b"a2")])
    assert list(store.journal("gateway")) == [("b", [b"b0", b"b1"]), ("a", [b"a0", b"\x00\xff", b"a2"]), ("c", [b""])]


def test_a_batch_of_any_size_keeps_its_order(store: TrajectoryStore) -> None:
    events = [index.to_bytes(4, "big") for index in range(1500)]
    store.append(happened("s", *events))
    assert list(store.journal("gateway")) == [("s", events)]


def test_each_gateway_finds_its_own_sessions(store: TrajectoryStore) -> None:
    store.append([*happened("a", b"1", owner="east"), *happened("b", b"2", owner="west")])
    assert list(store.journal("west")) == [("b", [b"2"])]
    assert list(store.journal("north")) == []


def test_a_saved_trajectory_replaces_its_journal(store: TrajectoryStore) -> None:
    store.append([*happened("s0", b"1"), *happened("other", b"2")])
    store.save(two_turns("s0").build())
    assert list(store.journal("gateway")) == [("other", [b"2"])]


def test_a_trajectory_that_is_refused_keeps_its_journal(store: TrajectoryStore) -> None:
    store.append(happened("s0", b"1"))
    with pytest.raises(StoreError, match="reward is nan"):
        store.save(two_turns("s0").build(reward=math.nan))
    assert list(store.journal("gateway")) == [("s0", [b"1"])]


def test_events_and_trajectories_are_written_together(store: TrajectoryStore) -> None:
    store.append([*happened("s0", b"1"), *happened("s1", b"2"), *happened("other", b"3")])
    store.write(happened("other", b"4"), [two_turns("s0").build(), two_turns("s1").build()])
    assert list(store.journal("gateway")) == [("other", [b"3", b"4"])]
    assert [trajectory.session_id for trajectory in store.iterate()] == ["s0", "s1"]


@pytest.mark.parametrize(("session_id", "reward"), [("there", 1.0), ("s1", math.nan)])
def test_of_what_is_written_together_all_happens_or_nothing(
    store: TrajectoryStore, session_id: str, reward: float
) -> None:
    store.save(two_turns("there").build())
    refused = two_turns(session_id).build(reward=reward)
    with pytest.raises(StoreError):
        store.write(happened("other", b"1"), [two_turns("s0").build(), refused])
    assert list(store.journal("gateway")) == []
    assert [trajectory.session_id for trajectory in store.iterate()] == ["there"]


def test_a_saved_session_does_not_come_back_by_an_event_that_was_late(store: TrajectoryStore) -> None:
    store.save(two_turns("s0").build())
    store.append(happened("s0", b"late"))
    assert list(store.journal("gateway")) == []


def test_a_forgotten_journal_is_gone(store: TrajectoryStore) -> None:
    store.append([*happened("a", b"1"), *happened("b", b"2")])
    store.forget_journal("a")
    store.forget_journal("nobody")
    assert list(store.journal("gateway")) == [("b", [b"2"])]


def test_an_open_session_is_known_to_all_gateways_until_it_is_saved(store: TrajectoryStore) -> None:
    assert not store.has_journal("s0")
    store.append(happened("s0", b"1"))
    assert store.has_journal("s0")
    store.save(two_turns("s0").build())
    assert not store.has_journal("s0")


def test_a_session_that_ends_while_the_journal_is_read_is_passed_over(store: TrajectoryStore) -> None:
    store.append([*happened("a", b"1"), *happened("b", b"2"), *happened("c", b"3")])
    reading = store.journal("gateway")
    assert next(reading) == ("a", [b"1"])
    store.forget_journal("b")
    assert list(reading) == [("c", [b"3"])]


@pytest.fixture
def sql_store(url: str) -> Iterator[SqlStore]:
    store = SqlStore(url)
    yield store
    store.close()


def test_a_batch_is_written_whole_or_not_at_all(sql_store: SqlStore) -> None:
    """Also where it takes several statements."""
    good = happened("s", *(b"event" for _ in range(600)))
    with pytest.raises(StoreError, match=r"journaling 601 events in .* failed") as refused:
        sql_store.append([*good, JournalEntry(None, "gateway", b"of nobody")])  # type: ignore[arg-type]
    assert not isinstance(refused.value, StoreUnavailable)
    assert list(sql_store.journal("gateway")) == []


def test_text_that_no_database_takes_is_refused_in_words(sql_store: SqlStore) -> None:
    with pytest.raises(StoreError, match=r"journaling 1 events in .* failed: .*(surrogates not allowed|utf-?8)"):
        sql_store.append(happened("\ud800", b"1"))


def test_one_session_of_the_journal_is_in_memory_at_a_time(sql_store: SqlStore) -> None:
    for index in range(20):
        sql_store.append(happened(f"s{index}", bytes(1_000_000)))

    def peak(limit: int) -> int:
        tracemalloc.start()
        for _ in itertools.islice(sql_store.journal("gateway"), limit):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1)
    assert peak(20) < 3 * peak(1)


APPENDING = """
import itertools, sys
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry

store = SqlStore(sys.argv[1])
for index in itertools.count():
    pair = (2 * index, 2 * index + 1)
    store.append([JournalEntry(f"s{event % 3}", "gateway", str(event).encode()) for event in pair])
    print(2 * index + 1, flush=True)
"""


def test_kill_9_loses_nothing_that_append_returned_for(url: str) -> None:
    """The writer says the last event of each batch after append(); it dies in the middle."""
    process = start(APPENDING, url)
    assert process.stdout is not None
    said = list(itertools.islice(process.stdout, 40))
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()

    found = dict(SqlStore(url, create=False).journal("gateway"))
    events = sorted(int(event) for of_session in found.values() for event in of_session)
    assert events == list(range(len(events)))
    assert len(events) - 1 - int(said[-1]) in (0, 2)  # one more batch may be durable whose word did not get out
    assert all(of_session == sorted(of_session, key=int) for of_session in found.values())
