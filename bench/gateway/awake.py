"""Keeps the cores of a machine from sleeping while something is timed that leaves them idle between two requests.

    python -m bench.gateway.awake PARENT

A core that a virtual machine gives away when it is idle comes back with cold caches: for a while code runs two or three
times slower. One process on each core spins in the kernel's idle class: it runs where nothing else would, and makes
room at once. It ends with process PARENT.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from bench.gateway.processes import ROOT

TURNS = 100_000


@contextmanager
def cores_awake() -> Iterator[None]:
    argv = [sys.executable, "-m", "bench.gateway.awake", str(os.getpid())]
    spinning = [subprocess.Popen(argv, cwd=ROOT) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def spin(parent: int) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while os.getppid() == parent:
        for _ in range(TURNS):
            pass


if __name__ == "__main__":
    spin(int(sys.argv[1]))
