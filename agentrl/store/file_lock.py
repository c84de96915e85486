"""Whose turn it is among processes: a lock on a file, freed when its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST_WAIT_S, LONGEST_WAIT_S = 0.0002, 0.002
"""Between two tries. A transaction takes some tenths of a millisecond."""


class FileLock:
    """`held` by one process at a time; a process takes it for one thread at a time.

    It is asked for again and again rather than waited for: the kernel's waiting has no limit, and a holder may be
    stopped.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    @contextmanager
    def held(self, timeout_s: float) -> Iterator[None]:
        """Raises TimeoutError when others have it for so long, OSError when the file cannot be made."""
        deadline, wait_s = time.monotonic() + timeout_s, FIRST_WAIT_S
        while not self.take():
            if time.monotonic() > deadline:
                raise TimeoutError(f"others hold {self._path} since {timeout_s:g} s")
            time.sleep(wait_s)
            wait_s = min(LONGEST_WAIT_S, wait_s * 1.5)
        try:
            yield
        finally:
            self.free()

    def take(self) -> bool:
        """Whether it is held now; `free` it then. Raises OSError when the file cannot be made."""
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def free(self) -> None:
        if self._fd is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
