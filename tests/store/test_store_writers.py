"""Processes that write one SQLite store take turns, and none waits for ever for another."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentrl.errors import StoreUnavailable
from agentrl.store import connect
from agentrl.store.file_lock import FileLock
from agentrl.store.sql import SqlStore
from agentrl.types import JournalEntry

HOLD = """
import sys
from pathlib import Path
from agentrl.store.file_lock import FileLock
with FileLock(Path(sys.argv[1])).held(10):
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(lock: Path) -> subprocess.Popen[str]:
    """Another process that has the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.fixture
def store(tmp_path: Path) -> SqlStore:
    return SqlStore.at(tmp_path / "t.db")


ENTRY = JournalEntry("s0", "gateway", b"event")


def test_a_writer_waits_while_another_process_writes(store: SqlStore, tmp_path: Path) -> None:
    other = holder(tmp_path / "t.db-lock")
    writing = threading.Thread(target=store.append, args=([ENTRY],))
    try:
        writing.start()
        writing.join(0.2)
        assert not store.has_journal("s0")
        assert other.stdin is not None
        other.stdin.close()
        writing.join(20)
        assert store.has_journal("s0")
    finally:
        other.kill()
        other.wait(10)


def test_a_writer_that_is_killed_holds_nobody_up(store: SqlStore, tmp_path: Path) -> None:
    other = holder(tmp_path / "t.db-lock")
    other.kill()
    other.wait(10)
    store.append([ENTRY])
    assert store.has_journal("s0")


def test_a_writer_that_never_ends_is_not_waited_for_for_ever(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.05)
    other = holder(tmp_path / "t.db-lock")
    try:
        with pytest.raises(StoreUnavailable, match=r"others hold .*t.db-lock since 0\.05 s"):
            store.append([ENTRY])
    finally:
        other.kill()
        other.wait(10)
    store.append([ENTRY])


def test_a_lock_is_free_again_after_an_error_under_it(tmp_path: Path) -> None:
    lock, other = FileLock(tmp_path / "lock"), FileLock(tmp_path / "lock")
    with pytest.raises(ValueError, match="mine"), lock.held(1):
        raise ValueError("mine")
    with other.held(1), pytest.raises(TimeoutError, match="since 0 s"), lock.held(0):
        pass
