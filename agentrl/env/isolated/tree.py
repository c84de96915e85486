"""The processes below one process: found, measured and ended as a whole, fork bombs included."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_CHEAP = re.compile(rb"^(?:RssAnon|RssShmem|VmSwap):\s+(\d+) kB", re.MULTILINE)
_EXACT = re.compile(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss):\s+(\d+) kB", re.MULTILINE)
_HAS_CHILDREN_FILES = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").exists()


def children_of(pid: int) -> list[int]:
    """Living children and zombies; none of a process that is gone."""
    if not _HAS_CHILDREN_FILES:
        return _children_by_search(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def descendants_of(pid: int) -> list[int]:
    found: list[int] = []
    waiting = children_of(pid)
    while waiting:
        child = waiting.pop()
        found.append(child)
        waiting += children_of(child)
    return found


def memory_of(pids: Iterable[int]) -> int:
    """Bytes of anonymous and shared memory. What processes share through a fork counts in each."""
    return sum(_sum_kib(_CHEAP, f"/proc/{pid}/status") for pid in pids)


def fair_memory_of(pids: Iterable[int]) -> int:
    """The same with shared pages divided among all who share them. Exact, and a hundred times as slow."""
    return sum(_sum_kib(_EXACT, f"/proc/{pid}/smaps_rollup") for pid in pids)


def end_children(*, timeout_s: float, but: Collection[int] = ()) -> int:
    """Kills everything below this process, reaps what becomes its own child, and says how many processes are left.
    Children in `but` are spared, with all that is below them.

    This process has to adopt orphans. Everything is stopped first, for what is stopped forks no more: once a process
    has been sent SIGSTOP, its list of children is final.
    """
    me, stopped = os.getpid(), set[int]()
    while fresh := [pid for pid in children_of(me) if pid not in stopped and pid not in but]:
        while fresh:
            pid = fresh.pop()
            if pid not in stopped:
                _signal(pid, signal.SIGSTOP)
                stopped.add(pid)
                fresh += children_of(pid)
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while True:
        reap_all()
        left = [pid for pid in children_of(me) if pid not in but]
        if not left or time.monotonic() > deadline:
            return len(left)
        time.sleep(0.002)


def reap_all(ended: dict[int, int] | None = None) -> bool:
    """Reaps every child that has ended, into `ended` (pid to wait status). True when there is no child any more."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        if ended is not None:
            ended[pid] = status


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _sum_kib(pattern: re.Pattern[bytes], path: str) -> int:
    return 1024 * sum(map(int, pattern.findall(_read(path))))


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _children_by_search(parent: int) -> list[int]:
    """For kernels without `children` files: every process's own word on who its parent is."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1 and int(fields[1]) == parent:
                found.append(int(name))
    return found
