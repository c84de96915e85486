"""What PostgreSQL needs beside the contract: writers side by side decide as if one came after the other."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest
from postgres_server import PostgresServer
from scripts import start
from trajectories import task, two_turns

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store import connect
from agentrl.store.base import TRAINED, Settlement
from agentrl.store.connect import open_engine
from agentrl.store.sql import SqlStore


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    return postgres.database()


@pytest.fixture
def store(database: str) -> Iterator[SqlStore]:
    opened = SqlStore(database)
    yield opened
    opened.close()


@pytest.fixture
def other(store: SqlStore, database: str) -> Iterator[psycopg.Connection]:
    """Another client of the same database, in a transaction."""
    with psycopg.connect(database) as connection:
        yield connection


def dropped(session_id: str, step: int = 1) -> Settlement:
    return Settlement(session_id=session_id, outcome="stale", step=step)


def blocked(write: Callable[[], None], by: psycopg.Connection, pool: ThreadPoolExecutor) -> Future[None]:
    """The write, under way until the transaction of `by` ends."""
    future = pool.submit(write)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(1000):
        by.execute("SELECT pg_stat_clear_snapshot()")
        row = by.execute(waits).fetchone()
        if row is not None and row[0]:
            return future
        time.sleep(0.01)
    raise AssertionError(f"it does not wait: {future}")


def test_a_session_that_another_gateway_saves_at_the_same_time_is_saved_once(
    store: SqlStore, other: psycopg.Connection
) -> None:
    columns = "session_id, mode, components, dropped, metadata, created_at, finished_at"
    other.execute(f"INSERT INTO trajectories ({columns}) VALUES ('s0', 'train', '{{}}', '{{}}', '{{}}', 0, 0)")
    with ThreadPoolExecutor(1) as pool:
        saving = blocked(lambda: store.save(two_turns("s0").build()), other, pool)
        other.commit()
        with pytest.raises(StoreError, match="'s0' is saved already") as refused:
            saving.result(timeout=30)
    assert not isinstance(refused.value, StoreUnavailable)
    assert store.get("s0").calls == []


def test_a_group_that_is_admitted_at_the_same_time_is_admitted_once(store: SqlStore, other: psycopg.Connection) -> None:
    other.execute("INSERT INTO groups (group_id, task, admitted_at_version) VALUES ('g0', '{\"id\": \"t\"}', 3)")
    with ThreadPoolExecutor(1) as pool:
        admitting = blocked(lambda: store.admit("g0", task(), 4), other, pool)
        other.commit()
        with pytest.raises(StoreError, match="'g0' is admitted already"):
            admitting.result(timeout=30)
    assert [group.admitted_at_version for group in store.groups()] == [3]


def test_a_group_that_is_settled_at_the_same_time_is_settled_once(store: SqlStore, other: psycopg.Connection) -> None:
    store.admit("g0", task(), 0)
    other.execute("UPDATE groups SET outcome = 'lost', step = 7 WHERE group_id = 'g0'")
    with ThreadPoolExecutor(1) as pool:
        settling = blocked(lambda: store.settle("g0", "stale", 1, [dropped("s0")]), other, pool)
        other.commit()
        with pytest.raises(StoreError, match="'g0' is closed already: lost at step 7; it cannot become stale"):
            settling.result(timeout=30)
    assert list(store.settlements()) == []


def test_a_trajectory_that_another_group_settles_at_the_same_time_is_settled_once(
    store: SqlStore, other: psycopg.Connection
) -> None:
    store.admit("g0", task(), 0)
    store.admit("g1", task(), 0)
    other.execute(
        "INSERT INTO settlements (session_id, group_id, outcome, step, tokens) VALUES ('s0', 'g1', 'x', 1, 0)"
    )
    with ThreadPoolExecutor(1) as pool:
        settling = blocked(lambda: store.settle("g0", "stale", 1, [dropped("s0")]), other, pool)
        other.commit()
        with pytest.raises(StoreError, match="'s0' of group 'g0' has a settlement already"):
            settling.result(timeout=30)
    assert [group.outcome for group in store.groups()] == [None, None]


def test_groups_that_settle_each_others_trajectories_leave_whole_books(store: SqlStore) -> None:
    """In crossing order, which may deadlock: PostgreSQL then ends one of them, which may pass."""
    for group_id in ("g0", "g1"):
        store.admit(group_id, task(), 0)
    barrier = threading.Barrier(2)

    def settle(group_id: str, order: list[str]) -> str | None:
        barrier.wait(timeout=30)
        try:
            store.settle(group_id, "stale", 1, [dropped(session_id) for session_id in order])
        except StoreError:
            return None
        return group_id

    ids = [f"s{index}" for index in range(50)]
    with ThreadPoolExecutor(2) as pool:
        won = [each for each in pool.map(settle, ("g0", "g1"), (ids, ids[::-1])) if each is not None]
    assert len(won) == 1
    assert sorted(settlement.session_id for settlement in store.settlements()) == sorted(ids)
    assert [group.group_id for group in store.groups() if group.outcome == "stale"] == won


RACING = """
import sys
from trajectories import task, two_turns
from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store.base import TRAINED, Settlement
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry

store, name = SqlStore(sys.argv[1]), sys.argv[2]
print("open", flush=True)
sys.stdin.readline()
for index in range(60):
    store.append([JournalEntry(f"s{index}", name, b"1")])
    settlement = Settlement(session_id=f"s{index}", outcome=TRAINED, step=1)
    for write in (
        lambda: store.save(two_turns(f"s{index}", group_id=f"g{index}").build()),
        lambda: store.admit(f"g{index}", task(), 0),
        lambda: store.settle(f"g{index}", TRAINED, 1, [settlement]),
    ):
        try:
            write()
            print("won", flush=True)
        except StoreUnavailable:
            raise
        except StoreError as error:
            assert "already" in str(error), error
            print("lost", flush=True)
"""


def test_two_processes_that_write_the_same_things_write_each_once(database: str) -> None:
    """They create the tables together, and neither is ever refused in other words than "already"."""
    processes = [start(RACING, database, name) for name in ("east", "west")]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    outcomes = []
    for process in processes:  # both are let go before either is waited for
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        outcomes += process.communicate(timeout=60)[0].split()
        assert process.returncode == 0
    assert (outcomes.count("won"), outcomes.count("lost")) == (180, 180)
    store = SqlStore(database)
    assert (store.count(), len(list(store.settlements()))) == (60, 60)
    assert {(group.outcome, group.step) for group in store.groups()} == {(TRAINED, 1)}
    store.close()


def test_a_writer_waits_its_time_and_then_says_so(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.05)
    store = SqlStore(database)
    store.admit("g0", task(), 0)
    with psycopg.connect(database) as other:
        other.execute("SELECT * FROM groups FOR UPDATE")
        with pytest.raises(StoreUnavailable, match=r"settling group 'g0' in .* failed: canceling .* lock timeout"):
            store.settle("g0", "stale", 1)
    store.settle("g0", "stale", 1)
    store.close()


def test_a_connection_that_was_cut_is_replaced(store: SqlStore, other: psycopg.Connection) -> None:
    store.save(two_turns("a").build())
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    store.save(two_turns("b").build())
    assert store.count() == 2


def test_a_server_that_is_not_there_may_come_back() -> None:
    with pytest.raises(StoreUnavailable, match=r"opening the store in postgresql\+psycopg://u:\*\*\*@127.0.0.1:1/db"):
        SqlStore("postgresql://u:secret@127.0.0.1:1/db")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_plain_urls_pick_the_driver_that_the_extra_installs(scheme: str) -> None:
    engine = open_engine(f"{scheme}://u@h/db", create=False)
    assert (engine.dialect.name, engine.dialect.driver) == ("postgresql", "psycopg")


def test_a_driver_that_is_missing_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"cannot be loaded: .*psycopg.*; pip install 'agentrl\[postgres\]'"):
        SqlStore("postgresql://u@h/db")


def test_what_is_not_a_store_is_refused_and_left_alone(postgres: PostgresServer, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE rows (id INTEGER)")
    with pytest.raises(StoreError, match="holds tables of something else: rows"):
        SqlStore(database)
    with pytest.raises(StoreError, match="holds no trajectory store"):
        SqlStore(postgres.database(), create=False)
