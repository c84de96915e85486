"""Whether a process still lives."""

from __future__ import annotations

import psutil


def lives(pid: int) -> bool:
    """A zombie, which only waits for its parent to ask, does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
