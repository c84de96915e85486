"""Which runs can go on, with what changed, and what is said of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.resumed import find_run, resumed_config
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory
from agentrl.train.batch import PreparedBatch
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.checkpoints import Checkpoints
from agentrl.types import Batch


def stored(root: Path, **tables: Any) -> RunDirectory:
    directory = RunDirectory(root)
    root.mkdir(parents=True)
    data = {"name": "r", "environment": {"id": "agentrl/Calculator-v0"}, "loop": {"steps": 10}, **tables}
    directory.config.write_text(RunConfig.model_validate(data).model_dump_json(indent=2))
    return directory


def ended(directory: RunDirectory, how: str, steps: int) -> None:
    directory.summary.write_text(json.dumps({"ended": how, "steps": steps}))


def checkpoint(directory: RunDirectory, version: int) -> None:
    held = Checkpoints(directory.checkpoints)
    (held.begin(version) / "trainer").mkdir(parents=True)
    (directory.checkpoints / f".v{version}.partial/trainer/state.json").write_text("{}")
    held.commit(version, scores={}, run={})


def test_a_run_is_found_by_its_directory_and_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    stored(tmp_path / "runs" / "demo")
    assert find_run("demo").root == Path("runs/demo")
    assert find_run("runs/demo").root == Path("runs/demo")
    with pytest.raises(ConfigError, match=r"no run 'other': neither other/config.json nor runs/other/config.json"):
        find_run("other")


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"preset": "dapo"},
        {"mode": "async"},
        {"preset": "ppo", "seed": 7, "engine": {"max_num_seqs": 9}, "trainer": {"learning_rate": 3e-4}},
        {"checkpoint": {"keep_last": "off"}, "rollout": {"max_tokens": "off"}},
    ],
)
def test_the_resolved_configuration_reads_back_as_it_was(tmp_path: Path, tables: dict):
    directory = stored(tmp_path / "r", **tables)
    config = resumed_config(directory, [])
    assert config.model_dump_json(indent=2) == directory.config.read_text()
    assert config.gateway.engine_concurrency == config.engine.max_num_seqs


def test_what_changes_nothing_that_is_learnt_may_change(tmp_path: Path):
    directory = stored(tmp_path / "r")
    overrides = ["loop.step_timeout_s=7", "checkpoint.every=3", "engine.timeouts.swap_s=9", "engine.replicas=2"]
    config = resumed_config(directory, overrides)
    assert (config.loop.step_timeout_s, config.checkpoint.every) == (7, 3)
    assert (config.engine.timeouts.swap_s, config.engine.replicas) == (9, 2)


@pytest.mark.parametrize("key", ["trainer.learning_rate", "staleness.max_lag", "seed", "loop.groups_per_step", "model"])
def test_other_keys_are_refused_by_name(tmp_path: Path, key: str):
    with pytest.raises(ConfigError, match=rf"--set {key}: a run goes on as it began; what may change is loop.steps"):
        resumed_config(stored(tmp_path / "r"), [f"{key}=1", "loop.step_timeout_s=7"])


def test_a_run_that_is_done_is_refused_unless_it_is_to_go_further(tmp_path: Path):
    directory = stored(tmp_path / "r")
    ended(directory, "done", 10)
    checkpoint(directory, 10)
    with pytest.raises(ConfigError, match=r"is done: 10 of 10 steps; set more, --set loop.steps=20"):
        resumed_config(directory, [])
    assert resumed_config(directory, ["loop.steps=12"]).loop.steps == 12


@pytest.mark.parametrize("how", ["interrupted", "failed"])
def test_one_that_was_interrupted_or_failed_goes_on(tmp_path: Path, how: str):
    directory = stored(tmp_path / "r")
    ended(directory, how, 4)
    assert resumed_config(directory, []).loop.steps == 10


def test_a_summary_that_a_full_disk_cut_says_nothing(tmp_path: Path):
    directory = stored(tmp_path / "r")
    directory.summary.write_text('{"ended": "do')
    assert resumed_config(directory, []).loop.steps == 10


def test_the_schedule_does_not_change_under_steps_that_are_trained_again(tmp_path: Path):
    directory = stored(tmp_path / "r")
    checkpoint(directory, 2)
    for version in (1, 2, 3):
        DiskBatchLog(directory.batches).write(PreparedBatch(Batch(version=version, rows=[]), settlements={}))
    with pytest.raises(ConfigError, match=r"2 steps since checkpoint v2 .* under the schedule of 10 steps"):
        resumed_config(directory, ["loop.steps=20"])
    checkpoint(directory, 4)
    assert resumed_config(directory, ["loop.steps=20"]).loop.steps == 20


def test_without_a_saved_trainer_there_is_nothing_to_go_on_from(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"checkpoint.trainer_state = false"):
        resumed_config(stored(tmp_path / "r", checkpoint={"trainer_state": False}), [])


def test_a_run_that_learns_from_data_is_refused_by_its_kind(tmp_path: Path):
    directory = RunDirectory(tmp_path)
    directory.config.write_text('{"kind": "sft"}')
    with pytest.raises(ConfigError, match="kind 'sft', which cannot go on"):
        resumed_config(directory, [])
