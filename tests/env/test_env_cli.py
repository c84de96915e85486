"""`agentrl env`: what is there, and one episode by hand."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import gymnasium
import pytest
from typer.testing import CliRunner

import agentrl
from agentrl.cli.env import env_app
from agentrl.cli.env_actions import parse, read_action, signature
from agentrl.cli.env_list import kind_of
from agentrl.env import registry
from agentrl.env.program import Program
from agentrl.env.roles import Role
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
    assert line.split()[1] == "tools"


def test_the_list_of_ids_is_one_id_a_line_and_nothing_else() -> None:
    assert run("list", "--ids").splitlines() == registry.known()


class Chat(agentrl.Env):
    """Messages only."""


class TwoSpeakers(agentrl.Env):
    roles: ClassVar[dict[str, Role]] = {"left": Role(), "right": Role()}


class Agent(Program):
    """Calls the policy itself."""


def test_a_kind_says_what_a_policy_has_to_do() -> None:
    named = {
        env_id: kind_of(registry.described(env_id)) for env_id in registry.known() if env_id.startswith("agentrl/")
    }
    assert named["agentrl/Sql-v0"] == "tools"
    assert named["agentrl/Shell-v0"] == "code"
    assert named["agentrl/WordGame-v0"] == "chat"
    assert (kind_of(Chat), kind_of(TwoSpeakers), kind_of(Agent)) == ("chat", "roles", "program")


def test_an_installed_environment_that_cannot_be_had_costs_its_own_row_only(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gymnasium.envs.registration.EnvSpec("Broken-v0", entry_point="no_such_module:Env")
    monkeypatch.setitem(gymnasium.registry, "Broken-v0", spec)
    lines = run("list").splitlines()
    assert any("Broken-v0" in line and "cannot be had" in line for line in lines)
    assert any(CALCULATOR in line for line in lines)


def test_an_episode_by_hand() -> None:
    (task,) = registry.tasks(CALCULATOR, split="train", seed=3, count=1)
    asked = problem(task.seed)
    typed = f'/calculate {{"expression": "{asked.expression}"}}\n{asked.answer}\n'
    said = run("play", CALCULATOR, "--seed", "3", typed=typed)
    assert f"user {asked.question}" in said
    assert "/calculate (expression: string): Evaluate an arithmetic expression of whole numbers." in said
    assert "step reward 0" in said
    assert "step reward 1 (the end)" in said
    assert f"tool {asked.answer}" in said
    assert "done after 2 turns, reward 1.0" in said


def test_input_that_ends_early_ends_the_episode() -> None:
    assert "The input ended before the episode did." in run("play", CALCULATOR)


@pytest.mark.parametrize("typed", [True, False], ids=["at a terminal", "through a pipe"])
def test_one_interrupt_ends_an_episode_that_waits_for_you(typed: bool) -> None:
    mine, its = os.openpty()
    code = "from agentrl.cli.main import main; main()"
    command = [sys.executable, "-c", code, "env", "play", CALCULATOR]
    given = its if typed else subprocess.PIPE
    with subprocess.Popen(command, stdin=given, stdout=its, stderr=its, start_new_session=True) as process:
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
    with pytest.raises(ConfigError, match=f"split 'eval' of {CALCULATOR} has no task 99999999"):
        run("play", CALCULATOR, "--split", "eval", "--task", "99999999")
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


def script(tmp_path: Path, *lines: str) -> str:
    file = tmp_path / "actions.txt"
    file.write_text("".join(f"{line}\n" for line in lines))
    return str(file)


def test_an_episode_by_a_file_of_actions(tmp_path: Path) -> None:
    (task,) = registry.tasks(CALCULATOR, split="train", seed=3, count=1)
    asked = problem(task.seed)
    actions = script(tmp_path, f"/calculate expression={asked.expression}", str(asked.answer))
    said = run("play", CALCULATOR, "--seed", "3", "--actions", actions)
    assert f'you /calculate {{"expression": "{asked.expression}"}}' in said
    assert f"you {asked.answer}" in said
    assert "done after 2 turns, reward 1.0" in said


def test_actions_may_come_from_a_pipe() -> None:
    assert "done after 1 turns, reward 0.0" in run("play", CALCULATOR, "--actions", "-", typed="no idea\n")


def test_a_file_of_actions_that_ends_first_is_told_by_status_3(tmp_path: Path) -> None:
    actions = script(tmp_path, "/calculate expression=1+1")
    assert "The input ended" in run("play", CALCULATOR, "--actions", actions, status=3)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["/calculate {1"], "{1' are not JSON"),
        (["/calculate 'open"], "'open\" cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_a_file_of_actions_that_cannot_be_read_is_a_config_error(
    lines: list[str] | None, said: str, tmp_path: Path
) -> None:
    actions = script(tmp_path, *lines) if lines is not None else str(tmp_path / "none.txt")
    with pytest.raises(ConfigError, match=said):
        run("play", CALCULATOR, "--actions", actions)


SIZED = """
import asyncio, os
import agentrl

class Sized(agentrl.Env):
    isolation = "process"

    def __init__(self, size=1, name="none"):
        self.size, self.name, self.here = size, name, os.getpid()

    async def reset(self, *, seed=None, options=None):
        await asyncio.sleep(0)
        return [agentrl.user(f"size {self.size + 1} name {self.name} pid {self.here}")], {}

    async def step(self, action):
        return [], float(len(action.text.splitlines())), True, False, {}
"""


def test_an_async_environment_in_a_process_is_played_with_its_arguments_and_answers_of_several_lines(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sized.py"
    file.write_text(SIZED)
    actions = script(tmp_path, '"""', "one", "two", "three", '"""')
    options = ["--option", "size=4", "--option", "name=kitchen"]
    said = run("play", f"{file}:Sized", *options, "--actions", actions)
    assert "user size 5 name kitchen pid " in said
    assert f"pid {os.getpid()}" not in said
    assert "done after 1 turns, reward 3.0" in said


PROGRAM = """
async def solve(task, policy):
    answer = await policy.chat([{"role": "user", "content": "Say yes."}])
    return float(answer.text == "yes")
"""


def test_an_agent_program_is_played(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    said = run("play", f"{file}:solve", "--actions", script(tmp_path, "yes"))
    assert "user Say yes." in said
    assert "done after 1 turns, reward 1.0" in said


def test_an_option_without_a_key_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="--option is given '4'; write --option key=value"):
        run("play", CALCULATOR, "--option", "4")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look.",
            "parameters": {
                "type": "object",
                "properties": {
                    "where": {"type": "string"},
                    "how": {"enum": ["near", "far"]},
                    "times": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
                    "at": {"type": "array", "items": {"type": "number"}},
                },
                "required": ["where"],
            },
        },
    }
]


def test_arguments_are_typed_as_the_schema_says() -> None:
    (call,) = parse('/look where=3 times=3 how="far" note="two words"', TOOLS).tool_calls
    given = json.loads(call["function"]["arguments"])
    assert given == {"where": "3", "times": 3, "how": "far", "note": "two words"}


def test_a_tool_is_shown_with_its_arguments_and_their_types() -> None:
    shown = signature(TOOLS[0]["function"])
    assert shown == '/look (where: string, how?: "near" | "far", times?: integer | null, at?: array of number): Look.'


def test_a_block_is_one_answer() -> None:
    lines = iter(['"""', "a", "", "/b", '"""', "next"])
    assert read_action(lambda: next(lines)).text == "a\n\n/b"
    assert read_action(lambda: next(lines)).text == "next"


def test_typed_lines() -> None:
    assert parse("//etc is a folder").text == "/etc is a folder"
    assert parse("42") == {"role": "assistant", "content": "42"}
    (call,) = parse('/look {"where": 1}').tool_calls
    assert call["function"] == {"name": "look", "arguments": '{"where": 1}'}
    assert parse("/now").tool_calls[0]["function"]["arguments"] == "{}"
    with pytest.raises(ValueError, match="not JSON"):
        parse("/look {where")
    with pytest.raises(ValueError, match="neither JSON nor argument=value"):
        parse("/look where")
