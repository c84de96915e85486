"""`agentrl env serve`: a process that answers OpenEnv's protocol until it is told to stop."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys

import pytest
from adapter_episode import ADAPTERS, play, said
from typer.testing import CliRunner

from agentrl.cli.env import env_app
from agentrl.env import registry
from agentrl.errors import ConfigError
from agentrl.types import Task

CALCULATOR = "agentrl/Calculator-v0"


def test_it_serves_what_the_environment_itself_would_say_and_ends_on_ctrl_c() -> None:
    command = [sys.executable, "-m", "agentrl.cli.main", "env", "serve", CALCULATOR, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found is not None
        task = Task(id="t", env_id=CALCULATOR, seed=5)
        direct, _ = asyncio.run(play(CALCULATOR, ["no idea"], task=task))
        served, _ = asyncio.run(play(f"{ADAPTERS}:OpenEnv", ["no idea"], task=task, url=found.group()))
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in (0, 130)
        assert "Traceback" not in process.stderr.read()
    assert said(served, 0) == said(direct, 0)
    assert (served.stop_reason, served.reward) == (direct.stop_reason, direct.reward) == ("done", 0.0)


def test_an_address_that_others_reach_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTRL_ENV_KEY", raising=False)
    ended = CliRunner().invoke(env_app, ["serve", CALCULATOR, "--host", "0.0.0.0"])
    assert isinstance(ended.exception, ConfigError)
    assert "AGENTRL_ENV_KEY is not set" in str(ended.exception)


def test_a_header_is_named_by_a_variable_that_there_is() -> None:
    with pytest.raises(ConfigError, match="names \\['AGENTRL_NO_SUCH'\\]"):
        registry.make(f"{ADAPTERS}:OpenEnv", url="http://x", header_env={"Authorization": "AGENTRL_NO_SUCH"})
