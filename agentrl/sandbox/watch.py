"""When a program has used more than it may: pure decisions, and the words for them."""

from __future__ import annotations

import signal

from msgspec import Struct

from agentrl.sandbox.base import MiB, SandboxLimits, Verdict

FLOOD_BYTES = 16 * MiB
"""Output beyond what is kept, of one stream, after which a program is killed."""

SLACK_PROCESSES = 8
"""Processes of the sandbox's own, and such as end just now."""


class Ending(Struct, frozen=True):
    """Why a run ended, or has to."""

    verdict: Verdict
    reason: str


def overrun(limits: SandboxLimits, *, wall_s: float, cpu_s: float, dropped_bytes: int) -> Ending | None:
    """What a program is killed for, of the things that cost nothing to know."""
    if wall_s >= limits.wall_s:
        return Ending(Verdict.TIMEOUT, f"it ran longer than {limits.wall_s:g} s")
    if cpu_s >= limits.cpu_s:
        return Ending(Verdict.CPU, f"it used more than {limits.cpu_s:g} s of processor time")
    if dropped_bytes > FLOOD_BYTES:
        return Ending(Verdict.OUTPUT, f"it wrote more than {FLOOD_BYTES // MiB} MiB of output")
    return None


def too_much_memory(limits: SandboxLimits) -> Ending:
    return Ending(Verdict.MEMORY, f"it used more than {size(limits.memory_bytes)} of memory")


def too_many_files(limits: SandboxLimits) -> Ending:
    return Ending(Verdict.DISK, f"it made more than {limits.disk_files} files")


def too_many_processes(limits: SandboxLimits) -> Ending:
    return Ending(Verdict.PROCESSES, f"it had more than {limits.processes} processes and threads")


def ended(exit_code: int, limits: SandboxLimits, *, disk_was_full: bool) -> Ending:
    """The verdict on a program that ended by itself."""
    if exit_code == 0:
        return Ending(Verdict.OK, "")
    if exit_code == 128 + signal.SIGXCPU:
        return Ending(Verdict.CPU, f"it used more than {limits.cpu_s:g} s of processor time")
    if exit_code == 128 + signal.SIGXFSZ:
        return Ending(Verdict.DISK, f"it wrote a file larger than {size(limits.disk_bytes)}")
    if disk_was_full:
        return Ending(
            Verdict.DISK, f"it ended with exit code {exit_code} after its disk of {size(limits.disk_bytes)} was full"
        )
    number = signal_of(exit_code)
    if number is not None:
        return Ending(Verdict.KILLED, f"it was ended by {signal.Signals(number).name}")
    return Ending(Verdict.FAILED, f"it ended with exit code {exit_code}")


def signal_of(exit_code: int) -> int | None:
    """The signal that an exit code stands for by the shells' convention."""
    number = exit_code - 128
    return number if number in {*signal.Signals} else None


def size(count: int) -> str:
    return f"{count / MiB:g} MiB" if count >= MiB else f"{count} bytes"
