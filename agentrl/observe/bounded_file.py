"""A file that grows by whole records, up to a bound, and stays readable through kill -9 and a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

_TAIL = 1 << 20
"""Bytes at a file's end in which its last whole record is looked for; no single one is larger."""


class BoundedFile:
    """Records end with `separator`. At `max_bytes` the file becomes `<name>.1`, in the place of the one before, and a
    new one begins with what `head` gives.

    A file that is there goes on after its last whole record. A record is written whole or not at all.
    """

    def __init__(
        self, path: Path, *, max_bytes: int, separator: bytes = b"\n", head: Callable[[], bytes] = lambda: b""
    ) -> None:
        """Opens nothing yet."""
        self._path, self._max_bytes, self._separator, self._head = path, max_bytes, separator, head
        self._file = -1
        self._size = 0

    @property
    def older(self) -> Path:
        return self._path.with_name(f"{self._path.name}.1")

    def append(self, records: bytes) -> bool:
        """False for what is larger than a file may be. Raises OSError; the file is as before then."""
        if len(records) > self._max_bytes:
            return False
        if self._file < 0:
            self._open()
        if self._size + len(records) > self._max_bytes:
            self.close()
            os.replace(self._path, self.older)
            self._open()
        self._write(records)
        return True

    def close(self, last: bytes = b"") -> None:
        """`last` comes after the last record, and goes when the file is gone on with. Raises OSError."""
        if self._file < 0:
            return
        try:
            if last:
                self._write(last)
        finally:
            os.close(self._file)
            self._file = -1

    def _open(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            self._size = self._end_of_records()
            os.ftruncate(self._file, self._size)
            if not self._size:
                self._write(self._head())
        except BaseException:
            self.close()
            raise

    def _end_of_records(self) -> int:
        size = os.fstat(self._file).st_size
        begin = max(0, size - _TAIL)
        found = os.pread(self._file, size - begin, begin).rfind(self._separator)
        return 0 if found < 0 else begin + found + len(self._separator)

    def _write(self, data: bytes) -> None:
        view, done = memoryview(data), 0
        try:
            while done < len(view):
                done += os.write(self._file, view[done:])
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += done
