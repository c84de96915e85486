"""`env init` writes an environment that is clean, tested and playable as it stands."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError

KINDS = ("tools", "code", "chat", "program")


def init(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["env", "init", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def run(command: str, folder: Path) -> str:
    """A printed command, with this interpreter's programs."""
    words = shlex.split(command)
    programs = {
        "agentrl": [sys.executable, "-c", "from agentrl.cli.main import main; main()"],
        "python": [sys.executable],
    }
    done = subprocess.run(
        [*programs[words[0]], *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "COLUMNS": "200"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_the_three_commands_that_it_prints_work(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    check, test, play = [line.strip() for line in init("my_env", "--kind", kind).splitlines()[1:]]
    assert run(check, tmp_path).rstrip().endswith("nothing found")
    assert " passed" in run(test, tmp_path)
    assert "done after" in run(play, tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_its_run_file_is_accepted(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    init("my_env", "--kind", kind, "--dir", "deep/er")
    done = CliRunner().invoke(app, ["train", "deep/er/my_env/run.toml", "--dry-run"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "deep/er/my_env/env.py:MyEnv" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_writes_is_formatted_and_lints_clean(kind: str, tmp_path: Path) -> None:
    init("my_env", "--kind", kind, "--dir", str(tmp_path))
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I,B,UP,SIM"]):
        done = subprocess.run(
            [*ruff, *command, "--isolated", "--line-length", "120", str(tmp_path)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    init("my_env", "--dir", str(tmp_path))
    (tmp_path / "my_env" / "env.py").write_text("mine")
    with pytest.raises(ConfigError, match="is there already, and is left alone"):
        init("my_env", "--dir", str(tmp_path))
    assert (tmp_path / "my_env" / "env.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["My-Env", "1st", "class", "../up", ""])
def test_a_name_that_cannot_be_one_is_refused_and_nothing_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use small letters, digits and _"):
        init(name, "--dir", str(tmp_path))
    assert list(tmp_path.iterdir()) == []
