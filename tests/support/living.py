"""Whether a process still lives, and waiting for what nothing announces."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def lives(pid: int) -> bool:
    """A zombie, which only waits for its parent to ask, does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it holds before the time is up."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
