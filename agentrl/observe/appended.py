"""A file that grows by whole records."""

from __future__ import annotations

import os
from pathlib import Path


class AppendedFile:
    """What is appended is all there or not at all: nothing torn stands in the way of what comes later."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size

    def append(self, record: bytes) -> None:
        """Raises OSError."""
        left = memoryview(record)
        try:
            while left:  # a full disk takes a part, and says why with the rest
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._size)
            raise
        self._size += len(record)

    def close(self) -> None:
        os.close(self._fd)
