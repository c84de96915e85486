"""`agentrl env`: what is there, and one episode by hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.env import env_app, parse
from agentrl.env import registry
from agentrl.errors import ConfigError
from agentrl_envs.calculator.tasks import problem

CALCULATOR = "agentrl/Calculator-v0"


def run(*arguments: str, typed: str = "", status: int = 0) -> str:
    done = CliRunner().invoke(env_app, list(arguments), input=typed, env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == status
    return done.stdout


def test_the_list_names_the_calculator_and_says_what_it_is() -> None:
    (line,) = [line for line in run("list").splitlines() if CALCULATOR in line]
    assert "Reward 1 for an answer that is the right number" in line


def test_an_episode_by_hand() -> None:
    (task,) = registry.tasks(CALCULATOR, split="train", seed=3, count=1)
    asked = problem(task.seed)
    typed = f'/calculate {{"expression": "{asked.expression}"}}\n{asked.answer}\n'
    said = run("play", CALCULATOR, "--seed", "3", typed=typed)
    assert f"user {asked.question}" in said
    assert f"tool {asked.answer}" in said
    assert "done after 2 turns, reward 1.0" in said


def test_input_that_ends_early_ends_the_episode() -> None:
    assert "The input ended before the episode did." in run("play", CALCULATOR)


def test_one_interrupt_ends_an_episode_that_waits_for_you() -> None:
    mine, its = os.openpty()
    code = "from agentrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "env", "play", CALCULATOR]
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        try:
            said = b""
            while b"you" not in said:
                said += os.read(mine, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 130
        finally:
            process.kill()
            os.close(mine)
            os.close(its)


def test_an_unknown_environment_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="known: agentrl/Calculator-v0"):
        run("play", "agentrl/Nothing-v0")


def test_the_tasks_before_the_one_that_is_asked_for_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or `--task 99999999` would fill the memory."""
    most_alive, alive = 0, 0

    def counted(*arguments: object, **options: object) -> Iterator[Counted]:
        nonlocal most_alive
        for _ in range(1000):
            yield Counted()
            most_alive = max(most_alive, alive)

    class Counted:
        def __init__(self) -> None:
            nonlocal alive
            alive += 1

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(registry, "tasks", counted)
    with pytest.raises(ConfigError, match="split 'eval' of some-env has no task 99999999"):
        run("play", "some-env", "--split", "eval", "--task", "99999999")
    assert most_alive <= 2


def test_the_task_that_is_asked_for_is_played() -> None:
    *_, third = registry.tasks(CALCULATOR, split="train", seed=3, count=3)
    assert problem(third.seed).question in run("play", CALCULATOR, "--seed", "3", "--task", "2")


def test_an_environment_that_fails_ends_the_command_with_status_1(tmp_path: Path) -> None:
    file = tmp_path / "fails.py"
    file.write_text(
        "import agentrl\nclass Mine(agentrl.ToolEnv):\n"
        "    def reset(self, *, seed=None, options=None): raise KeyError('k')\n"
    )
    assert "env_error after 0 turns, reward None" in run("play", f"{file}:Mine", status=1)


def test_typed_lines() -> None:
    assert parse("42") == {"role": "assistant", "content": "42"}
    (call,) = parse('/look {"where": 1}').tool_calls
    assert call["function"] == {"name": "look", "arguments": '{"where": 1}'}
    assert parse("/now").tool_calls[0]["function"]["arguments"] == "{}"
    with pytest.raises(ValueError, match="not JSON"):
        parse("/look where")
