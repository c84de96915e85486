"""A preset is beneath the run file's own keys, and what it resolves to is a configuration that can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.config import RunConfig, load_run_config
from agentrl.errors import ConfigError
from agentrl.train import presets

DEMO = Path(__file__).parents[2] / "examples" / "01_calculator" / "run.toml"


def resolved(preset: str, *overrides: str) -> RunConfig:
    return load_run_config(DEMO, [f"preset={preset}", *overrides])


@pytest.mark.parametrize("name", presets.names())
def test_the_demo_takes_every_preset_and_all_that_it_names_is_there(name: str) -> None:
    config = resolved(name)
    assert config.preset == name
    assert config.trainer.learning_rate == 5e-4, "the file's own key"  # type: ignore[attr-defined]
    assert callable(plugins.load("agentrl.advantages", config.algorithm.advantage))
    assert callable(plugins.load("agentrl.policy_losses", config.trainer.loss.name))  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", presets.names())
def test_what_was_resolved_resolves_to_itself(name: str) -> None:
    """As `config.json` of a run directory: the preset is in it, and so is every key."""
    config = resolved(name)
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


def test_every_preset_is_of_a_named_source() -> None:
    for name in presets.names():
        first = (Path(presets.__file__).parent / f"{name}.toml").read_text().splitlines()[0]
        assert first.startswith("# "), name
        assert any(character.isdigit() for character in first), "a year or a number of arXiv"


def test_dapo_is_clip_higher_dynamic_sampling_token_mean_and_overlong_filtering() -> None:
    """Yu et al., arXiv:2503.14476, sections 3.1 to 3.4."""
    config = resolved("dapo")
    trainer: Any = config.trainer
    assert (config.algorithm.zero_variance, config.algorithm.overlong) == ("refill", "mask")
    assert (trainer.loss.clip_low, trainer.loss.clip_high, trainer.aggregation.name) == (0.2, 0.28, "token_mean")
    assert trainer.kl.coefficient == 0.0


def test_the_files_own_keys_win_table_by_table() -> None:
    config = resolved("dapo", "trainer.loss.clip_high=0.4", "algorithm.overlong=keep")
    trainer: Any = config.trainer
    assert (trainer.loss.clip_high, trainer.loss.clip_low) == (0.4, 0.2)
    assert (config.algorithm.overlong, config.algorithm.zero_variance) == ("keep", "refill")


def test_an_unknown_preset_lists_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"preset = 'dappo': there is no such preset; known: cispo, dapo"):
        resolved("dappo")


def test_a_preset_may_be_refused_for_what_the_file_adds() -> None:
    with pytest.raises(ConfigError, match="needs a critic"):
        resolved("ppo", "trainer.critic.enabled=false")


def test_beneath_changes_neither_of_the_two() -> None:
    data, preset = {"a": {"b": 1}}, {"a": {"b": 2, "c": 3}, "d": {"e": 4}}
    assert presets.beneath(data, preset) == {"a": {"b": 1, "c": 3}, "d": {"e": 4}}
    assert (data, preset) == ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}, "d": {"e": 4}})


def test_the_key_names_every_preset() -> None:
    described = RunConfig.model_fields["preset"].description or ""
    assert {name for name in presets.names() if f"`{name}`" not in described} == set()
