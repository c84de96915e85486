"""`examples/05_adapters`: its commands end as its README says, and its run files can be played."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from adapter_episode import call, play
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.config import load_run_config
from agentrl.env import registry

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/05_adapters"
COMMANDS = re.findall(r"^\.venv/bin/agentrl (env play .*)$", (EXAMPLE / "README.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS, ids=["lake", "library"])
def test_the_readmes_commands_end_with_reward_1(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    ended = CliRunner().invoke(app, shlex.split(command), catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert "reward 1.0" in ended.output


async def test_the_run_file_of_the_lake_is_solved_by_the_way_to_the_goal() -> None:
    environment = load_run_config(EXAMPLE / "lake.toml").environment
    actions = (EXAMPLE / "lake.actions").read_text().splitlines()
    episode, _ = await play(environment.id, actions, **environment.options)
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)


async def test_the_run_file_of_the_library_works_from_any_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    environment = load_run_config(EXAMPLE / "library.toml").environment
    options = registry.placed(environment.id, environment.options)
    [task] = registry.tasks(environment.id, split="train", seed=2, count=1, env_kwargs=options)
    monkeypatch.chdir(tmp_path)
    replies = [call("find", '{"topic": "stars"}'), "shelf 7"]
    right, _ = await play(environment.id, list(replies), task=task, **options)
    wrong, _ = await play(environment.id, ["shelf 2"], task=task, **options)
    assert right.messages[0]["content"] == "On which shelf are the books about stars? End with the number."
    assert (right.reward, wrong.reward) == (1.0, 0.0)
