"""What docs/scheduling.md names is there: its snippet is a configuration, its keys and metrics exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.observe.records import StepRecord

PAGE = (Path(__file__).parents[2] / "docs" / "scheduling.md").read_text()


def test_the_pages_mix_is_a_configuration() -> None:
    [snippet] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    config = RunConfig.model_validate({"name": "x", **tomllib.loads(snippet)})
    assert [(source.name, source.id, source.weight) for source in config.environment.sources] == [
        ("sums", "agentrl/Calculator-v0", 3.0),
        ("sql", "agentrl/Sql-v0", 1.0),
    ]


def test_every_key_that_the_page_names_is_one() -> None:
    default = RunConfig.model_validate({"name": "x", "environment": {"id": "x:Y"}})
    named = set(re.findall(r"`((?:loop|rollout|staleness|evaluation)\.[a-z_.]+)[` ]", PAGE))
    assert len(named) > 8
    for key in named:
        table, _, name = key.partition(".")
        assert name in type(getattr(default, table)).model_fields, key


def test_every_metric_that_the_page_names_is_one() -> None:
    of_a_step = PAGE.split("## How to see it")[1].split("The files:")[0]
    rows = [line.split("|")[1] for line in of_a_step.splitlines() if line.startswith("| `")]
    named = {name.partition(".")[0] for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    assert named <= set(StepRecord.__struct_fields__)
    assert "task_sources" in named
