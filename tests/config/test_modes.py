"""A mode is a name for a few keys: what it resolves to, and what is refused beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.cluster.transfer import check_transfer
from agentrl.config import RunConfig, load_run_config
from agentrl.errors import ConfigError

MINIMAL = """
name = "test"
[environment]
id = "agentrl/Calculator-v0"
"""


def resolved(tmp_path: Path, *overrides: str) -> RunConfig:
    path = tmp_path / "run.toml"
    path.write_text(MINIMAL)
    return load_run_config(path, overrides)


@pytest.mark.parametrize(
    ("mode", "max_lag", "sleep_level"),
    [("sync", 0, None), ("one_step_off", 1, None), ("async", 4, None), ("colocated", 0, 1)],
)
def test_a_mode_resolves_to_the_keys_beneath_it(tmp_path: Path, mode: str, max_lag: int, sleep_level: int | None):
    config = resolved(tmp_path, f"mode={mode}")
    assert (config.staleness.max_lag, config.engine.sleep_level) == (max_lag, sleep_level)


def test_without_a_mode_the_keys_are_as_they_are_given(tmp_path: Path):
    config = resolved(tmp_path, "staleness.max_lag=3")
    assert (config.mode, config.staleness.max_lag, config.engine.sleep_level) == (None, 3, None)


def test_keys_that_agree_with_the_mode_are_kept(tmp_path: Path):
    assert resolved(tmp_path, "mode=async", "staleness.max_lag=2").staleness.max_lag == 2
    assert resolved(tmp_path, "mode=colocated", "engine.sleep_level=2").engine.sleep_level == 2


def test_a_resolved_configuration_that_is_read_back_is_the_same(tmp_path: Path):
    config = resolved(tmp_path, "mode=colocated", "engine.sleep_level=2")
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("mode=sync", "staleness.max_lag=2"), 'mode = "sync" is staleness.max_lag = 0, and it is 2'),
        (("mode=one_step_off", "staleness.max_lag=0"), 'mode = "one_step_off" is staleness.max_lag = 1, and it is 0'),
        (("mode=async", "staleness.max_lag=1"), 'mode = "async" is staleness.max_lag = 2 or more, and it is 1'),
        (("mode=colocated", "engine.sleep_level=off"), 'mode = "colocated" is engine.sleep_level = 1 or 2'),
        (("mode=sync", "engine.sleep_level=1"), 'engine.sleep_level = 1 is mode = "colocated", and mode is "sync"'),
        (("engine.sleep_level=1",), r"set staleness.max_lag = 0 \(it is 1\), or leave engine.sleep_level out"),
        (("mode=asynchronous",), "mode = 'asynchronous': "),
        (("mode=3",), "mode = 3: "),
        (("engine.sleep_level=3",), "engine.sleep_level = 3: "),
    ],
)
def test_an_impossible_combination_is_refused_with_the_fix(tmp_path: Path, overrides: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        resolved(tmp_path, *overrides)


def test_an_adapters_model_may_not_be_forgotten_for_swaps_do_not_bring_it(tmp_path: Path):
    config = resolved(tmp_path, "mode=colocated", "engine.sleep_level=2", "trainer.lora.rank=8")
    with pytest.raises(ConfigError, match=r"set engine.sleep_level = 1"):
        check_transfer(config)
    check_transfer(resolved(tmp_path, "mode=colocated", "trainer.lora.rank=8"))
