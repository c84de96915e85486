"""One program from its start to its end: fed, read, watched, and killed when it uses more than it may."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from msgspec import Struct

from agentrl.errors import SandboxFault
from agentrl.sandbox import watch
from agentrl.sandbox.base import SandboxLimits
from agentrl.sandbox.pump import Pump
from agentrl.sandbox.usage import Usage

_TICK_S = 0.02
_DEATH_S = 5.0  # seconds within which what was killed is dead
_DRAIN_S = 1.0


class DiskUse(Struct, frozen=True):
    full: bool
    files: int


class Cell(Protocol):
    """What the program is locked in."""

    def usage(self) -> Usage: ...
    def memory_bytes(self) -> int: ...
    def disk(self) -> DiskUse: ...
    def kill(self) -> None:
        """Every process in it, at once."""

    def is_dead(self, within_s: float) -> bool:
        """Whether every process in it is gone, waiting for that for so many seconds."""


class Outcome(Struct, frozen=True):
    """How the program ended and what it wrote."""

    ending: watch.Ending
    exit_code: int | None  # None when it was killed
    wall_s: float
    cpu_s: float


def supervise(pump: Pump, cell: Cell, limits: SandboxLimits, cancelled: threading.Event) -> Outcome:
    """Returns when every process in the cell is dead; the pump is closed and holds the output.

    Raises SandboxFault when it was cancelled, or when what was killed does not die.
    """
    try:
        return _supervise(pump, cell, limits, cancelled)
    except BaseException:
        cell.kill()
        pump.close()
        raise


def _supervise(pump: Pump, cell: Cell, limits: SandboxLimits, cancelled: threading.Event) -> Outcome:
    started = time.monotonic()
    ending, cpu_s = _watch(pump, cell, limits, cancelled)
    wall_s = time.monotonic() - started
    _bury(pump, cell)
    pump.drain(_DRAIN_S)
    disk_was_full = cell.disk().full
    exit_code, reaped_cpu_s = pump.close()
    if cancelled.is_set():
        raise SandboxFault("the run in the sandbox was cancelled")
    return Outcome(
        ending=ending or watch.ended(exit_code, limits, disk_was_full=disk_was_full),
        exit_code=exit_code if ending is None else None,
        wall_s=wall_s,
        cpu_s=max(cpu_s, reaped_cpu_s),
    )


def _watch(
    pump: Pump, cell: Cell, limits: SandboxLimits, cancelled: threading.Event
) -> tuple[watch.Ending | None, float]:
    """Until the program ends, or is to be killed for the reason given. And the processor seconds seen by then."""
    started = sampled = time.monotonic()
    cpu_s = 0.0
    ending = None
    while not pump.has_ended and ending is None and not cancelled.is_set():
        pump.turn(min(_TICK_S, started + limits.wall_s - time.monotonic()))
        now = time.monotonic()
        if now - sampled >= _TICK_S and not pump.has_ended:
            sampled, used = now, cell.usage()
            cpu_s = max(cpu_s, used.cpu_s)  # less than before when a process ended that nobody waited for
            ending = _over_resources(cell, used, limits)
        dropped = max(pump.stdout.dropped, pump.stderr.dropped)
        ending = ending or watch.overrun(limits, wall_s=now - started, cpu_s=cpu_s, dropped_bytes=dropped)
    return ending, cpu_s


def _over_resources(cell: Cell, used: Usage, limits: SandboxLimits) -> watch.Ending | None:
    # The precise figure costs milliseconds, so it is asked for only when the rough one is too high.
    if used.resident_bytes > limits.memory_bytes and cell.memory_bytes() > limits.memory_bytes:
        return watch.too_much_memory(limits)
    if used.processes > limits.processes + watch.SLACK_PROCESSES:
        return watch.too_many_processes(limits)
    if cell.disk().files > limits.disk_files:
        return watch.too_many_files(limits)
    return None


def _bury(pump: Pump, cell: Cell) -> None:
    """Also when the program seems to have ended: what it left must not live on, nor what only pretends to be dead."""
    cell.kill()
    dead = cell.is_dead(_DEATH_S)
    deadline = time.monotonic() + _DEATH_S
    while dead and not pump.has_ended and (left := deadline - time.monotonic()) > 0:
        pump.turn(left)
    if not pump.has_ended:
        raise SandboxFault(f"the sandbox did not die within {_DEATH_S:g} s of being killed; look for stuck processes")
