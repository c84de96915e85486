"""What docs/algorithms.md says is so: its snippets work, its tables are the presets and the parts that there are."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl import plugins
from agentrl.config import RunConfig, load_run_config
from agentrl.train import presets
from agentrl.train.advantage import Attempt, over_a_step
from agentrl_trainers.algorithms.foreign_loss import checked
from agentrl_trainers.algorithms.sampled import SampledTokens
from agentrl_trainers.settings.objective import BUILT_IN_LOSSES, CORRECTION_PRESETS, LossConfig

PAGE = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
DEMO = Path(__file__).parents[2] / "examples" / "01_calculator" / "run.toml"


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def rows(text: str, columns: int) -> list[list[str]]:
    """The cells of a table's rows that begin with a name in backticks."""
    found = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in found if len(row) == columns]


@pytest.fixture
def snippet(tmp_path: Path) -> Any:
    def write(function: str) -> str:
        [source] = [
            block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if f"def {function}" in block
        ]
        assert len(source.strip().splitlines()) <= 12, "about ten lines, and the file's name"
        (tmp_path / f"{function}.py").write_text(source)
        return f"{tmp_path / function}.py:{function}"

    return write


def test_the_table_of_presets_is_what_the_presets_set() -> None:
    table = {row[0].strip("`"): row for row in rows(section("Presets"), 5)}
    assert sorted(table) == presets.names()
    for name, (_, advantage, loss, besides, _) in table.items():
        config: Any = load_run_config(DEMO, [f"preset={name}"])
        assert (f"`{config.algorithm.advantage}`", f"`{config.trainer.loss.name}`") == (advantage, loss)
        assert ("correction `tis`" in besides) == (config.trainer.correction.preset == "tis")
        assert ("mean over each row" in besides) == (config.trainer.aggregation.name == "sequence_mean")
        assert ("refilled" in besides) == (config.algorithm.zero_variance == "refill")
        for low, high in re.findall(r"bounds ([\d.e-]+) and ([\d.e-]+)", besides):
            assert (config.trainer.loss.clip_low, config.trainer.loss.clip_high) == (float(low), float(high))


def test_every_estimator_and_every_loss_is_explained() -> None:
    named = {point.name for point in entry_points(group="agentrl.advantages")}
    assert {row[0].strip("`") for row in rows(section("Advantages"), 2)} >= named
    assert {row[0].strip("`") for row in rows(section("Losses"), 2)} == set(BUILT_IN_LOSSES)


def test_the_table_of_corrections_is_the_presets_of_corrections() -> None:
    table = {name.strip("`"): cells for name, *cells in rows(section("Corrections"), 4) if name != "`token`"}
    for name, values in CORRECTION_PRESETS.items():
        if name == "none":
            continue
        level, mode, bounds = table[name]
        assert (level, mode) == (values["level"], values["mode"])
        expected = [values["low"], values["high"]] if mode != "truncate" else [values["high"]]
        assert [float(bound) for bound in bounds.split(", ")] == expected


def test_its_run_files_are_run_files(tmp_path: Path) -> None:
    files = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert len(files) == 2
    for number, text in enumerate(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(text)
        assert isinstance(load_run_config(path), RunConfig)


def test_the_estimator_of_rewards_is_taken_as_it_stands(snippet: Any) -> None:
    estimate = over_a_step(plugins.load("agentrl.advantages", snippet("above_the_median")))
    group = [Attempt(reward) for reward in (3.0, None, 1.0, 0.0)]
    assert estimate([group]) == [[[2.0], None, [0.0], [-1.0]]]


def test_the_estimator_of_calls_is_taken_as_it_stands(snippet: Any) -> None:
    estimate = over_a_step(plugins.load("agentrl.advantages", snippet("own_reward_of_each_call")))
    assert estimate([[Attempt(1.0, (0.25, 0.5), (1, 1)), Attempt(None)]]) == [[[0.25, 0.5], None]]


def test_the_loss_has_a_gradient_for_every_token(snippet: Any) -> None:
    """At a ratio of 1 it is 0 with slope -A; at e², tanh 2 = 0.964 is beyond 0.2."""
    loss = plugins.load("agentrl.policy_losses", snippet("soft_clip"))
    logprobs = torch.tensor([0.0, 2.0], requires_grad=True)
    zeros, rows_N = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    tokens = SampledTokens(logprobs, zeros, zeros, zeros, zeros, torch.tensor([1.0, -1.0]), rows_N, rows_N)
    found = checked(loss(tokens, LossConfig()), tokens, "soft_clip")
    assert found.loss_N.tolist() == pytest.approx([0.0, 0.9640], abs=1e-4)
    assert found.clipped_N.tolist() == [False, True]
    found.loss_N.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 1 - 0.9640**2], abs=1e-3)
