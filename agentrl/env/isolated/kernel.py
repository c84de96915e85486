"""What Linux does for us without privileges: orphans come to the guard, and a parent's death is heard."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import socket
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

SLACK_BYTES = 512 * 2**20
"""Of address space over the memory cap: the watcher is exact, this only stops what is too quick for it."""


def adopt_orphans() -> None:
    """Descendants whose parent ends become this process's children, in whatever session or group they are."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: signal.Signals, parent: int) -> None:
    """This process gets the signal when its parent ends; at once when it has ended already."""
    _prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def limit_this_process(memory_bytes: int) -> None:
    """No private memory far past the cap, no core files, and the first that the kernel ends when memory runs out."""
    _lower(resource.RLIMIT_DATA, memory_bytes + SLACK_BYTES)
    _lower(resource.RLIMIT_CORE, 0)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")


def wake_up_on(*signals: signal.Signals) -> socket.socket:
    """A socket that can be read when one of them came, a byte for each: its number."""
    reading, writing = socket.socketpair()
    reading.setblocking(False)
    writing.setblocking(False)
    signal.set_wakeup_fd(writing.detach(), warn_on_full_buffer=False)
    for number in signals:
        signal.signal(number, lambda *_: None)
    return reading


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
