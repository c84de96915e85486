"""A small process that sees the driver go: kill -9 leaves nobody else to end what the driver had started.

It remembers the driver's descendants while the driver lives, for some of them (Ray's agents) neither end with their
parents nor can be recognised afterwards.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import psutil

from agentrl.cluster.processes import descendants, end, processes_of

LOOK_EVERY_S = 1.0
STOP_TIMEOUT_S = 10.0


@contextlib.contextmanager
def reaper(tag: str, held: Sequence[int] = ()) -> Iterator[None]:
    """Runs beside the block. The pipe on its standard input is the driver's life: it closes however the driver ends.

    `held`: descriptors of locks that are not free while anything of the driver is left.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, str(os.getpid()), tag],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=held,
        start_new_session=True,  # a Ctrl-C in the terminal is not for it
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT_S)


def watch(driver: int, tag: str, gone: Callable[[], bool]) -> None:
    """Looks at the driver's descendants until `gone` says that it is; returns when nothing of it is left."""
    known: dict[int, psutil.Process] = {}
    while not gone():
        with contextlib.suppress(psutil.NoSuchProcess):
            known |= {process.pid: process for process in descendants(driver) if process.pid != os.getpid()}
        known = {pid: process for pid, process in known.items() if process.is_running()}
    end([*known.values(), *processes_of(tag, earlier=())])


def _input_closed() -> bool:
    """Waits a moment for it."""
    return bool(select.select([sys.stdin], [], [], LOOK_EVERY_S)[0])


if __name__ == "__main__":
    watch(int(sys.argv[1]), sys.argv[2], _input_closed)
