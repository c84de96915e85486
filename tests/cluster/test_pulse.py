"""When a process is given up, and what a killed run leaves in memory."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from agentrl.cluster.pulse import Pulse
from agentrl.cluster.shared_memory import shared_memory


def test_a_process_that_is_gone_is_given_up_at_once():
    assert Pulse(5).saw(running=False, answered=False) == "died"


def test_late_answers_are_forgiven_until_there_were_too_many_in_a_row():
    pulse = Pulse(5)
    late = [pulse.saw(running=True, answered=False) for _ in range(4)]
    assert late == [None] * 4
    assert pulse.saw(running=True, answered=True) is None
    late = [pulse.saw(running=True, answered=False) for _ in range(5)]
    assert late == [None] * 4 + ["did not answer 5 health checks in a row"]


def test_the_weights_directory_is_gone_afterwards(tmp_path: Path):
    with shared_memory(tmp_path) as path:
        (path / "weights").write_bytes(b"x")
        assert path.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_swept_and_what_a_living_one_uses_is_not(tmp_path: Path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    here = socket.gethostname()
    left, used, elsewhere, foreign = (
        tmp_path / f"agentrl-{gone.pid}@{here}-a",
        tmp_path / f"agentrl-{os.getpid()}@{here}-b",
        tmp_path / f"agentrl-{gone.pid}@another-node-c",  # weights of a driver there, for the engines here
        tmp_path / "other",
    )
    for path in (left, used, elsewhere, foreign):
        path.mkdir()
    with shared_memory(tmp_path):
        assert [path.exists() for path in (left, used, elsewhere, foreign)] == [False, True, True, True]
