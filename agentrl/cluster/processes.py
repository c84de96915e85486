"""No process of a run outlives it: descendants are known by their parents, and by a tag in their environment."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence

import psutil

TAG = "AGENTRL_RUN_TAG"

LAST = 19
"""The highest niceness. Ray gives its workers 15; beside one of those this one gets three cores of ten."""


def new_tag() -> str:
    return secrets.token_hex(8)


def tag_this_process(tag: str) -> None:
    """Puts the tag into this process's environment, from which every process started later inherits it."""
    os.environ[TAG] = tag


def yield_cores() -> None:
    """Lets every other process go first where cores are short: this one's threads, and those that they will start.

    Linux has a niceness for each thread. It can only be raised, which nobody may be refused.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.setpriority(os.PRIO_PROCESS, int(thread), LAST)


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Of a process, this one by default. Raises psutil.NoSuchProcess."""
    return psutil.Process(pid).children(recursive=True)


def processes_of(tag: str, *, earlier: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Every living process of the run but this one: its descendants without the `earlier` ones, and who has the tag.

    Neither is enough alone: what was orphaned is nobody's descendant, and what sets its own title (as Ray's agents do)
    overwrites its environment.
    """
    found = {process.pid: process for process in descendants() if process not in earlier}
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found[process.pid] = process
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return list(found.values())


def end(processes: Sequence[psutil.Process], *, grace_s: float = 5.0) -> list[str]:
    """SIGTERM, then SIGKILL after the grace, to those that still live; returns their names."""
    living = [process for process in processes if _lives(process)]
    names = [_name(process) for process in living]
    for process in living:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(living, timeout=grace_s)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=grace_s)
    return names


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return "gone"
