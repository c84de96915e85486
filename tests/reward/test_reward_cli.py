"""`agentrl reward serve` as a person runs it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError


def test_a_service_is_served_scores_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "agentrl.cli.main", "reward", "serve", "match", "--key-env", "MY_KEY"],
        env={**os.environ, "MY_KEY": "secret", "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.match(r"reward service match at (http://127\.0\.0\.1:\d+) \(documentation: .*/docs\)", line)
        assert found is not None, line
        assert "secret" not in line
        item = {"id": "a", "text": "Paris", "task": {"options": {"answer": "paris"}}}
        answer = httpx.post(
            f"{found[1]}/score", json={"items": [item]}, headers={"Authorization": "Bearer secret"}, timeout=30
        )
        assert answer.json() == {"results": [{"id": "a", "reward": 1.0, "components": {}, "error": None}]}
        assert httpx.get(f"{found[1]}/health", timeout=30).json() == {"status": "ok", "service": "match"}
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)


def test_the_services_that_come_along_are_listed() -> None:
    ran = CliRunner().invoke(app, ["reward", "list"])
    assert {"match", "math"} <= {line.split()[0] for line in ran.output.splitlines() if line.strip()}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "no agentrl.rewards is called 'nothing'"),
        (["match", "--option", "colour=red"], "does not take these options"),
        (["match", "--option", "how=magic"], "match compares by one of"),
        (["match", "--key-env", "NO_SUCH_KEY"], "NO_SUCH_KEY, which is to hold the service's key, is not set"),
        (["match", "--host", "203.0.113.9"], "cannot listen on 203.0.113.9"),
    ],
)
def test_a_wrong_command_line_is_refused_in_words(arguments: list[str], said: str) -> None:
    ran = CliRunner().invoke(app, ["reward", "serve", *arguments])
    assert isinstance(ran.exception, ConfigError)
    assert said in str(ran.exception)
