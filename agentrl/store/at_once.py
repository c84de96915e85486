"""Small SQLite transactions in the thread that asks for them: they wait for nobody, and take less time than waking a
thread that may wait.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentrl.store.file_lock import FileLock
from agentrl.store.plain import Plain

CHECKPOINT_EVERY = 1000
"""Transactions here, after which one has to go the other way: there the WAL is copied into the database, with an fsync
that takes as long as the disk likes."""


class AtOnce:
    """`turn` and `lock` are those that all writers of the database take, in this order. For one thread at a time."""

    def __init__(self, path: Path, turn: threading.Lock, lock: FileLock) -> None:
        self._path = path
        self._turn = turn
        self._lock = lock
        self._connection: sqlite3.Connection | None = None
        self._done = 0

    def write(self, work: Callable[[Plain], None]) -> bool:
        """One transaction, durable as others are; False, with nothing written, when that could not be done at once.

        Of what went wrong nothing is said: the other way meets it, too.
        """
        if self._done == CHECKPOINT_EVERY or not self._turn.acquire(blocking=False):
            self._done = 0
            return False
        try:
            if not self._lock.take():
                return False
            try:
                return self._write(work)
            finally:
                self._lock.free()
        except Exception:
            return False
        finally:
            self._turn.release()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _write(self, work: Callable[[Plain], None]) -> bool:
        cursor = (self._connection or self._connect()).cursor()
        try:
            cursor.execute("BEGIN IMMEDIATE")
            work(Plain(cursor, "?"))
            cursor.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                cursor.execute("ROLLBACK")
            raise
        finally:
            cursor.close()
        self._done += 1
        return True

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
        for pragma in ("synchronous=NORMAL", "wal_autocheckpoint=0"):
            connection.execute(f"PRAGMA {pragma}").close()
        self._connection = connection
        return connection
