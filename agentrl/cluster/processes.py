"""No process of a run outlives it: descendants are known by their parents, and by a tag in their environment."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Sequence

import psutil

from agentrl.cluster.signals import signals_ignored

logger = logging.getLogger(__name__)

TAG = "AGENTRL_RUN_TAG"


def tag_this_process() -> str:
    """A new tag, put into this process's environment, from which every process started later inherits it."""
    tag = secrets.token_hex(8)
    os.environ[TAG] = tag
    return tag


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


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


@contextlib.contextmanager
def no_process_left(stop: Callable[[], None]) -> Iterator[Callable[[], list[str]]]:
    """Ends every process that the block started, however the block ended; `stop` asks them first.

    Yields a function that ends them at once, for whoever cannot wait.
    """
    earlier = descendants()
    tag = tag_this_process()
    try:
        yield lambda: end(processes_of(tag, earlier=earlier), grace_s=0.0)
    finally:
        with signals_ignored():
            processes = processes_of(tag, earlier=earlier)  # before `stop`, which orphans some
            stop()
            if left := end([*processes, *processes_of(tag, earlier=earlier)]):
                logger.info("ended what was left: %s", ", ".join(left))
