"""Writing at once waits for nobody, and is as whole and as durable as writing in turn."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from scripts import start

from agentrl.store import at_once
from agentrl.store.base import TrajectoryStore
from agentrl.store.file_lock import FileLock
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry


def events(*data: bytes, session_id: str = "s") -> list[JournalEntry]:
    return [JournalEntry(session_id, "gateway", each) for each in data]


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[SqlStore]:
    store = SqlStore.at(tmp_path / "t.db")
    yield store
    store.close()


def test_what_was_written_at_once_stands_in_order_between_what_was_not(store: TrajectoryStore) -> None:
    written = [b"0"]
    store.append(events(b"0"))
    for pair in ((b"1", b"2"), (b"3", b"4")):
        if store.append_at_once(events(*pair)):
            written += pair
    store.append(events(b"5"))
    assert list(store.journal("gateway")) == [("s", [*written, b"5"])]


def test_sqlite_takes_it_and_postgresql_leaves_it_to_a_thread(url: str) -> None:
    store = SqlStore(url)
    assert store.append_at_once(events(b"1")) is url.startswith("sqlite")
    store.close()


def test_a_database_with_options_is_left_to_a_thread(tmp_path: Path) -> None:
    """It would be opened without them."""
    store = SqlStore(f"sqlite:///{tmp_path / 't.db'}?timeout=5")
    assert not store.append_at_once(events(b"1"))
    store.append(events(b"2"))
    assert list(store.journal("gateway")) == [("s", [b"2"])]
    store.close()


def test_another_process_or_thread_that_writes_is_not_waited_for(sqlite: SqlStore, tmp_path: Path) -> None:
    with FileLock(tmp_path / "t.db-lock").held(1):
        assert not sqlite.append_at_once(events(b"1"))
    inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with sqlite._database.write("something"):
            inside.set()
            leave.wait(10)

    writing = threading.Thread(target=write)
    writing.start()
    assert inside.wait(10)
    assert not sqlite.append_at_once(events(b"2"))
    leave.set()
    writing.join(10)
    assert sqlite.append_at_once(events(b"3"))
    assert list(sqlite.journal("gateway")) == [("s", [b"3"])]


def test_a_program_that_knows_nothing_of_the_turn_is_not_waited_for_either(sqlite: SqlStore, tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not sqlite.append_at_once(events(b"1"))
    other.execute("ROLLBACK")
    other.close()
    assert sqlite.append_at_once(events(b"2"))


@pytest.mark.parametrize(
    "bad", [JournalEntry(None, "gateway", b""), JournalEntry("\ud800", "gateway", b"")], ids=["of nobody", "no text"]
)  # type: ignore[arg-type]
def test_what_the_database_refuses_leaves_nothing_behind_and_holds_nothing(sqlite: SqlStore, bad: JournalEntry) -> None:
    assert not sqlite.append_at_once([*events(*[b"event"] * 600), bad])
    assert list(sqlite.journal("gateway")) == []
    sqlite.append(events(b"in turn"))
    assert sqlite.append_at_once(events(b"at once"))


def test_the_log_is_copied_into_the_database_by_the_other_way(
    sqlite: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would grow for as long as nothing else is written."""
    monkeypatch.setattr(at_once, "CHECKPOINT_EVERY", 3)
    assert [sqlite.append_at_once(events(b"1")) for _ in range(8)] == [True, True, True, False] * 2


APPENDING = """
import itertools, sys
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry

store = SqlStore(sys.argv[1])
for index in itertools.count():
    entries = [JournalEntry("s", "gateway", str(index).encode())]
    store.append_at_once(entries) or store.append(entries)
    print(index, flush=True)
"""


def test_kill_9_loses_nothing_of_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 't.db'}"
    process = start(APPENDING, url)
    assert process.stdout is not None
    said = list(itertools.islice(process.stdout, 1500))  # the other way, too
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()
    store = SqlStore(url, create=False)
    ((_, found),) = store.journal("gateway")
    store.close()
    assert [int(event) for event in found] == list(range(len(found)))
    assert len(found) - 1 - int(said[-1]) in (0, 1)
