"""What a program is killed for, and the verdict on one that ended by itself: decisions without a process."""

from __future__ import annotations

import sys

import pytest

from agentrl.sandbox import SandboxLimits, Verdict, make_sandbox, watch
from agentrl.sandbox.output import KeptOutput

LIMITS = SandboxLimits(wall_s=5, cpu_s=2, disk_bytes=1024 * 1024)
FLOOD = 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("wall_s", "cpu_s", "dropped_bytes", "verdict", "reason"),
    [
        (4.9, 1.9, FLOOD, None, ""),
        (5.0, 0.0, 0, Verdict.TIMEOUT, "it ran longer than 5 s"),
        (0.0, 2.0, 0, Verdict.CPU, "it used more than 2 s of processor time"),
        (0.0, 0.0, FLOOD + 1, Verdict.OUTPUT, "it wrote more than 16 MiB of output"),
    ],
)
def test_a_program_is_killed_at_its_limits_and_not_before(
    wall_s: float, cpu_s: float, dropped_bytes: int, verdict: Verdict | None, reason: str
) -> None:
    found = watch.overrun(LIMITS, wall_s=wall_s, cpu_s=cpu_s, dropped_bytes=dropped_bytes)
    assert (found and found.verdict, found.reason if found else "") == (verdict, reason)


@pytest.mark.parametrize(
    ("exit_code", "disk_was_full", "verdict", "reason"),
    [
        (0, False, Verdict.OK, ""),
        (0, True, Verdict.OK, ""),
        (1, False, Verdict.FAILED, "it ended with exit code 1"),
        (1, True, Verdict.DISK, "it ended with exit code 1 after its disk of 1 MiB was full"),
        (139, False, Verdict.KILLED, "it was ended by SIGSEGV"),
        (152, False, Verdict.CPU, "it used more than 2 s of processor time"),
        (153, False, Verdict.DISK, "it wrote a file larger than 1 MiB"),
        (255, False, Verdict.FAILED, "it ended with exit code 255"),
    ],
)
def test_an_exit_code_has_its_verdict(exit_code: int, disk_was_full: bool, verdict: Verdict, reason: str) -> None:
    found = watch.ended(exit_code, LIMITS, disk_was_full=disk_was_full)
    assert (found.verdict, found.reason) == (verdict, reason)


def test_both_ends_of_a_stream_are_kept_however_it_is_cut() -> None:
    for chunk in (1, 3, 7, 100, 200_000):
        kept = KeptOutput(10)
        data = b"abcde" + b"." * 150_000 + b"vwxyz"
        for start in range(0, len(data), chunk):
            kept.add(data[start : start + chunk])
        assert kept.text == "abcde\n[150000 bytes left out]\nvwxyz"
        assert kept.dropped == 150_000


def test_a_stream_that_fits_is_whole() -> None:
    kept = KeptOutput(11)
    kept.add("äöü".encode())
    kept.add(b"12345")
    assert (kept.text, kept.dropped) == ("äöü12345", 0)


def test_too_many_processes_are_killed_where_the_kernel_does_not_count_them() -> None:
    program = (
        "import subprocess, time\nchildren = [subprocess.Popen(['sleep', '60']) for _ in range(20)]\ntime.sleep(60)"
    )
    result = make_sandbox("unsafe").run_blocking(
        [sys.executable, "-c", program], limits=SandboxLimits(wall_s=60, processes=5)
    )
    assert (result.verdict, result.reason) == (Verdict.PROCESSES, "it had more than 5 processes and threads")
