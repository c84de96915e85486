"""Bad input ends with one clear sentence that names the fix: exit status 2 for configuration, 1 for a run. No hang."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest
from command import Command, agentrl

RUN = """
name = "bad"
[environment]
id = "{env}"
[loop]
steps = 1
groups_per_step = 1
[rollout]
group_size = 2
[evaluation]
tasks = 2
"""

RAISES_IN_RESET = """
import agentrl

class Broken(agentrl.Env):
    def reset(self, *, seed=None, options=None):
        raise ValueError("the board is missing")

    def step(self, action):
        raise AssertionError("never reached")
"""


HAS_NO_SCORE = """
import agentrl

class Mute(agentrl.ToolEnv):
    def reset(self, *, seed=None, options=None):
        return [agentrl.user("hello")], {}
"""

HAS_NO_WEIGHTS = """
import agentrl

class Agent(agentrl.Program):
    def __init__(self):
        raise OSError("no weights")
"""


@pytest.fixture
def run_file(tmp_path: Path):
    def write(env: str = "agentrl/Calculator-v0", more: str = "") -> str:
        path = tmp_path / "run.toml"
        path.write_text(RUN.format(env=env) + more)
        return str(path)

    return write


def test_an_unknown_key(tmp_path: Path, run_file):
    status, output = agentrl("train", run_file(), "--set", "loop.step=3", cwd=tmp_path)
    assert status == 2
    assert "loop.step: unknown key; did you mean 'steps'?" in output
    assert "Traceback" not in output


def test_a_model_that_does_not_exist(tmp_path: Path, run_file):
    status, output = agentrl("train", run_file(), "--set", "model=models/nothing", cwd=tmp_path)
    assert status == 2
    assert "model 'models/nothing' is not a directory; give the path of a local Hugging Face model" in output
    assert not (tmp_path / "runs").exists(), "nothing was started, so nothing is left"


def test_an_environment_that_does_not_exist(tmp_path: Path, run_file):
    status, output = agentrl("train", run_file("agentrl/Calculatr-v0"), cwd=tmp_path)
    assert status == 2
    assert "no environment is called 'agentrl/Calculatr-v0'" in output
    assert "agentrl/Calculator-v0" in output


def test_an_environment_that_raises_in_reset(tmp_path: Path, run_file):
    (tmp_path / "broken.py").write_text(RAISES_IN_RESET)
    status, output = agentrl("train", run_file("broken.py:Broken"), cwd=tmp_path)
    assert status == 1
    assert "ValueError: the board is missing" in output
    assert "Traceback" not in output
    assert len(output.strip().splitlines()) <= 2


def test_an_environment_that_nobody_scores(tmp_path: Path, run_file):
    (tmp_path / "mute.py").write_text(HAS_NO_SCORE)
    status, output = agentrl("train", run_file("mute.py:Mute"), cwd=tmp_path)
    assert status == 2
    assert "nothing scores mute.py:Mute" in output
    assert "write `score`, or name a service or a function under [reward]" in output


COMMAND = "agentrl.env.command:Command"


def test_a_command_that_nothing_grades(tmp_path: Path, run_file):
    options = """[environment.options]\ncommand = ["sh", "agent.sh"]\n"""
    status, output = agentrl("train", run_file(COMMAND, options), cwd=tmp_path)
    assert status == 2
    assert "nothing grades the command" in output
    assert "environment.options.grade" in output


def test_a_command_as_one_text(tmp_path: Path, run_file):
    options = """[environment.options]\ncommand = "sh agent.sh"\ngrade = ["sh", "grade.sh"]\n"""
    status, output = agentrl("train", run_file(COMMAND, options), cwd=tmp_path)
    assert status == 2
    assert "command = 'sh agent.sh'; give a list, the program first" in output


def test_a_program_that_cannot_be_made(tmp_path: Path, run_file):
    (tmp_path / "agent.py").write_text(HAS_NO_WEIGHTS)
    status, output = agentrl("train", run_file("agent.py:Agent"), cwd=tmp_path)
    assert status == 1
    assert "raised OSError: no weights" in output
    assert "Traceback" not in output


def test_a_reward_service_that_is_not_there(tmp_path: Path, run_file):
    service = '[[reward.services]]\nname = "judge"\nurl = "http://127.0.0.1:9"\n'
    status, output = agentrl("train", run_file(more=service), cwd=tmp_path)
    assert status == 1
    assert "judge" in output
    assert "http://127.0.0.1:9" in output


def test_a_run_that_is_already_there(tmp_path: Path, run_file):
    (tmp_path / "runs" / "bad").mkdir(parents=True)
    (tmp_path / "runs" / "bad" / "notes.txt").write_text("mine")
    status, output = agentrl("train", run_file(), cwd=tmp_path)
    assert status == 2
    assert "already holds a run; go on with it by `agentrl train --resume runs/bad`, give another --name" in output
    status, output = agentrl("train", run_file(), "--overwrite", cwd=tmp_path)
    assert status == 2, "a directory that is no run is never deleted"
    assert (tmp_path / "runs" / "bad" / "notes.txt").read_text() == "mine"


def test_an_audit_of_what_is_no_run(tmp_path: Path):
    status, output = agentrl("audit", str(tmp_path), cwd=tmp_path)
    assert status == 2
    assert "is not a run directory" in output


@pytest.mark.stack
@pytest.mark.parametrize("section", ["engine", "gateway"])
def test_a_port_in_use(tmp_path: Path, run_file, section: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        key = f"engine.ports=[{port}]" if section == "engine" else f"gateway.port={port}"
        command = Command("train", run_file(), "--set", key, cwd=tmp_path)
        status = command.wait(timeout=120)
    assert status == 2
    assert f"port {port}" in command.output
    assert "in use" in command.output
    assert not (tmp_path / "runs").exists(), "nothing was started, so nothing is left"
    assert command.left_behind() == []


@pytest.mark.stack
def test_more_cpus_than_there_are(tmp_path: Path, run_file):
    """Case 80: said when Ray is up, with what is free. `test_whole_run` has what is asked for by default."""
    command = Command("train", run_file(), "--set", "cluster.engine_cpus=1000", cwd=tmp_path)
    assert command.wait(timeout=120) == 1, command.output
    free = max(2, os.cpu_count() or 1)
    assert "no node has 1000 CPU free, which engines need on one node" in command.output
    assert re.search(rf"Free are on [\d.]+ {free} CPU", command.output), command.output
    assert command.left_behind() == []


@pytest.mark.stack
def test_an_engine_that_never_becomes_healthy(tmp_path: Path, run_file):
    command = Command("train", run_file(), "--set", "engine.timeouts.startup_s=2", cwd=tmp_path)
    assert command.wait(timeout=120) == 1
    assert "engine-0 was not healthy within 2 s; raise engine.timeouts.startup_s" in command.output
    assert "engine-0.log" in command.output
    assert command.left_behind() == []
