"""Does one fault to a run that goes on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
from pathlib import Path

import psutil

from bench.chaos.place import OnNodes, Place
from bench.chaos.plan import Fault
from bench.chaos.targets import any_of, tree

BALLAST = "ballast"
BLOCK = b"\0" * (1 << 20)
OFF_S = 5.0
"""Of a node beside a fault's own time: Ray has noticed by then, and takes it for a new one."""


class Injuries:
    """Of one campaign. `disk`: a directory on the file system that the run writes to, and that may be filled."""

    def __init__(self, place: Place, disk: Path | None, seed: int) -> None:
        self._place = place
        self._disk = disk
        self._chance = random.Random(seed)
        self._stopped: list[psutil.Process] = []
        self._later: list[threading.Timer] = []

    def inflict(self, fault: Fault, driver: int) -> str | None:
        """What was done, in words; None where there is nothing to do it to now."""
        action, part = fault.kind.action, fault.kind.part
        if part == "disk":
            return self._fill(fault.lasts_s)
        if part == "node":
            return self._switch_off(fault.lasts_s + OFF_S)
        if part == "driver":
            os.kill(driver, signal.SIGKILL if action == "kill" else signal.SIGTERM)
            return f"process {driver}"
        target = any_of(self._place.processes(driver), part, self._chance)
        if target is None:
            return None
        if action == "kill":
            _signal([target], signal.SIGKILL)
            return f"process {target.pid}"
        stopped = tree(target)
        _signal(stopped, signal.SIGSTOP)
        if action == "stop":
            self._stopped += stopped
            return f"process {target.pid}"
        self._after(fault.lasts_s, lambda: _signal(stopped, signal.SIGCONT))
        return f"process {target.pid}, for {fault.lasts_s:.1f} s"

    def heal(self) -> None:
        """Nothing of it goes on: what still is stopped is continued, the disk has room, nodes are on.

        May be repeated. Raises NodeFailed.
        """
        for timer in self._later:
            timer.cancel()
            timer.function()
        self._later.clear()
        _signal(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    def _fill(self, lasts_s: float) -> str | None:
        if self._disk is None:
            return None
        ballast, written = self._disk / BALLAST, 0
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                written += file.write(BLOCK)
        self._after(lasts_s, lambda: ballast.unlink(missing_ok=True))
        return f"{written >> 20} MiB, for {lasts_s:.1f} s"

    def _switch_off(self, lasts_s: float) -> str | None:
        place = self._place
        if not isinstance(place, OnNodes) or (node := place.any_node(self._chance)) is None:
            return None
        place.switch_off(node)
        self._after(lasts_s, lambda: place.switch_on(node))
        return f"{node.name}, for {lasts_s:.1f} s"

    def _after(self, seconds: float, action: object) -> None:
        timer = threading.Timer(seconds, action)  # type: ignore[arg-type]
        timer.daemon = True
        timer.start()
        self._later.append(timer)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
