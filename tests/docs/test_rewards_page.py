"""What docs/rewards.md says is so: its settings, its commands, its functions, its tables and its numbers."""

from __future__ import annotations

import re
import shlex
import tomllib
import typing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer

from agentrl.cli.main import app
from agentrl.cli.reward import PLUGIN_GROUP
from agentrl.reward.config import FunctionConfig, PartConfig, RewardConfig, ServiceConfig
from agentrl.reward.functions import RewardFunction
from agentrl.reward.protocol import Item, Score, item_of
from agentrl.reward.stats import ServiceStats
from agentrl.reward.wire import ABOUT_THE_BODY, UNABLE
from agentrl.types import Episode, StopReason, Task

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "rewards.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def first_cells(head: str) -> list[str]:
    """The names in the first column of the table that begins with this line."""
    table = PAGE.partition(f"\n{head}\n")[2].partition("\n\n")[0]
    return [name for line in table.splitlines()[1:] for name in re.findall(r"`([^`]+)`", line.split("|")[1])]


@pytest.mark.parametrize("block", blocks("toml"))
def test_every_table_of_settings_is_one(block: str) -> None:
    config = RewardConfig.model_validate(tomllib.loads(block)["reward"])
    assert config.parts


def test_every_command_has_options_that_exist() -> None:
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    assert len(lines) == 5
    for line in lines:
        command = typing.cast(Any, typer.main.get_command(app))
        words = shlex.split(line.removeprefix("agentrl "))
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context(command.name, words)


def test_every_named_setting_and_option_is_one() -> None:
    rescore = typing.cast(Any, typer.main.get_command(app)).commands["rescore"]
    serve = typing.cast(Any, typer.main.get_command(app)).commands["reward"].commands["serve"]
    options = {option for command in (rescore, serve) for parameter in command.params for option in parameter.opts}
    assert set(re.findall(r"`(--[a-z-]+)`", PAGE)) <= options
    fields = {*RewardConfig.model_fields, *ServiceConfig.model_fields, *FunctionConfig.model_fields}
    named = set(re.findall(r"`(env_weight|token_cost|\w+_(?:s|share|size|attempts|env|file)|concurrency|scope)`", PAGE))
    assert named - {"request_s", "outage_s"} <= fields
    assert len(named) >= 12


async def test_the_functions_score_as_told(tmp_path: Path) -> None:
    [source] = blocks("python")
    (tmp_path / "rewards.py").write_text(source)
    items = [Item(id=name, text=text) for name, text in (("a", "Answer: 391"), ("b", "391"), ("c", "none at all"))]
    format_ = FunctionConfig(name="format", function=f"{tmp_path / 'rewards.py'}:has_an_answer")
    found = await RewardFunction(format_).score(items)
    assert {name: score.reward for name, score in found.items()} == {"a": 1.0, "b": 0.0, "c": 0.0}
    shorter = FunctionConfig(name="shorter", function=f"{tmp_path / 'rewards.py'}:shorter_is_better", scope="group")
    found = await RewardFunction(shorter).score(items, together=True)
    assert {name: score.reward for name, score in found.items()} == {"a": 0.5, "b": 1.0, "c": 0.0}


def test_the_fields_of_items_and_results_are_all_there() -> None:
    task = Task(id="t", env_id="e", seed=1, options={"answer": 1})
    episode = Episode(session_id="s", task=task, stop_reason=StopReason.DONE, reward=None, turns=1, messages=[])
    item = item_of(episode, "g")
    told = [*Item.__struct_fields__, *item.task, *item.metadata]
    assert sorted({*first_cells("| of an item | |")}) == sorted(Item.__struct_fields__)
    for name in told:
        assert f"`{name}`" in PAGE
    assert sorted({*first_cells("| of a result | |")}) == sorted(Score.__struct_fields__)


def test_the_services_are_those_that_are_installed() -> None:
    there = {point.name for point in entry_points(group=PLUGIN_GROUP)}
    assert set(first_cells("| name | scores | its page |")) == there


def test_the_policies_and_protocols_are_those_that_there_are() -> None:
    policies = typing.get_args(RewardConfig.model_fields["on_error"].annotation)
    assert tuple(first_cells("| `on_error` | in an outage |")) == policies
    protocols = typing.get_args(ServiceConfig.model_fields["protocol"].annotation)
    assert {"agentrl", *first_cells("| `protocol` | asks | with |")} == set(protocols)


def test_the_metrics_are_those_that_are_written() -> None:
    section = PAGE.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    listed = {name for line in section.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)}
    stats = ServiceStats()
    stats.failed_requests.update(["outage", "trouble"])
    assert listed == set(stats.as_metrics())


def test_the_statuses_are_those_that_are_told_apart() -> None:
    table = PAGE.partition("| what happens | is | and then |")[2].partition("\n\n")[0]
    rows = table.splitlines()
    [outage] = [row for row in rows if "no connection" in row]
    assert tuple(map(int, re.findall(r"\b\d{3}\b", outage))) == UNABLE
    [refused] = [row for row in rows if "400" in row]
    assert tuple(map(int, re.findall(r"\b\d{3}\b", refused))) == ABOUT_THE_BODY


def test_the_numbers_are_the_defaults() -> None:
    from agentrl.retry import MAX_BACKOFF_S, MAX_RETRY_AFTER_S
    from agentrl.reward.lanes import POLICY
    from agentrl.reward.scorer import MIN_SCORES, WINDOW

    assert (POLICY.failures, POLICY.backoff_s, POLICY.max_backoff_s) == (3, 0.5, 15.0)
    assert "three times in\na row is left alone for half a second, and longer each time, up to 15 s" in PAGE
    assert (MAX_BACKOFF_S, MAX_RETRY_AFTER_S) == (10.0, 60.0)
    assert f"last {WINDOW} scores of a part (of at least {MIN_SCORES})" in PAGE
    assert RewardConfig().give_up_s == 600.0
    assert "up to `give_up_s`, ten minutes by default" in PAGE
    assert PartConfig(name="a").scope == "episode"
