"""No process of a run outlives it: every descendant carries the run's tag in its environment, and is found by it."""

from __future__ import annotations

import contextlib
import os
import secrets

import psutil

TAG = "AGENTRL_RUN_TAG"


def tag_this_process() -> str:
    """A new tag, put into this process's environment, from which every process started later inherits it."""
    tag = secrets.token_hex(8)
    os.environ[TAG] = tag
    return tag


def processes_of(tag: str) -> list[psutil.Process]:
    """Every living process that carries the tag, this one left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def end_processes_of(tag: str, *, grace_s: float = 5.0) -> list[str]:
    """SIGTERM, then SIGKILL after the grace; returns the names of those that had to be ended."""
    processes = processes_of(tag)
    names = [_name(process) for process in processes]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, stubborn = psutil.wait_procs(processes, timeout=grace_s)
    for process in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stubborn, timeout=grace_s)
    return names


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return "gone"
