"""One driver a run directory: a lock that is free only when nothing of the driver before is left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from agentrl.errors import ConfigError

LEFT_S = 60.0  # that what a driver had started has to be gone in, after its death
LOOK_EVERY_S = 0.1


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[int]:
    """The file's descriptor. A process that inherits it holds the lock too: the reaper, until all have ended.

    Raises ConfigError when the run goes on, or when what is left of it does not end.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        _take(fd, path)
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        try:
            yield fd
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _take(fd: int, path: Path) -> None:
    deadline = time.monotonic() + LEFT_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 32, 0).decode(errors="replace").strip()
        if holder.isdigit() and psutil.pid_exists(int(holder)):
            raise ConfigError(f"the run in {path.parent} goes on: process {holder} drives it; wait for it, or stop it")
        if time.monotonic() > deadline:
            raise ConfigError(
                f"processes of the run in {path.parent} are left {LEFT_S:g} s after its driver ended; end them "
                f"(`fuser {path}` names one), then try again"
            )
        time.sleep(LOOK_EVERY_S)
