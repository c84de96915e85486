"""What a run has sampled is learned as it was recorded: its ids, its masks, the rewarded ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentrl.assets import CODER, EMBEDDED, resolve_model
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory
from agentrl.store.sql import SqlStore
from agentrl.train.supervised.config import TranscriptsConfig
from agentrl.train.supervised.dataset import load_transcripts
from agentrl.types import Row, Task, Trajectory, VersionSpan

MODEL = resolve_model(EMBEDDED)
IDS = [5, 9, 9, 7, 3, 8]  # no tokenizer would give these for any text
MASK = [0, 0, 1, 1, 0, 1]


def trajectory(number: int, reward: float | None, *, task: str = "t", mode: str = "train") -> Trajectory:
    row = Row(
        token_ids=[*IDS, number],
        loss_mask=[*MASK, 0],
        logprobs=[-0.5 if on else None for on in [*MASK, 0]],
        versions=[VersionSpan(0, 2, 4), VersionSpan(0, 5, 6)],
    )
    return Trajectory(
        session_id=f"s{number}", task=Task(id=task), mode=mode, reward=reward, rows=[row], finished_at=float(number)
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    directory = RunDirectory(tmp_path / "demo")
    directory.root.mkdir()
    directory.config.write_text(json.dumps({"model": EMBEDDED, "store_url": None}))
    store = SqlStore(directory.store_url)
    for one in (
        trajectory(1, 1.0, task="a"),
        trajectory(2, 0.0, task="a"),
        trajectory(3, None, task="b"),
        trajectory(4, 1.0, task="b"),
        trajectory(5, 1.0, task="c", mode="eval"),
    ):
        store.save(one)
    store.close()
    return directory.root


def test_rewarded_training_trajectories_are_learned_by_their_recorded_ids(run: Path) -> None:
    dataset = load_transcripts(TranscriptsConfig(from_run=run, min_reward=1.0), MODEL, 0)
    assert [item.rows[0].token_ids for item in dataset.train] == [[*IDS, 1], [*IDS, 4]]
    assert [item.rows[0].loss_mask for item in dataset.train] == [[*MASK, 0]] * 2
    assert dataset.left_out == {"reward_below_minimum": 1, "reward_missing": 1}


def test_without_a_bound_all_training_trajectories_are_learned(run: Path) -> None:
    assert len(load_transcripts(TranscriptsConfig(from_run=run), MODEL, 0).train) == 4


def test_attempts_at_one_task_are_held_out_together(run: Path) -> None:
    dataset = load_transcripts(TranscriptsConfig(from_run=run, eval_fraction=0.5), MODEL, 0)
    assert (len(dataset.train), len(dataset.held_out)) == (2, 2)
    assert len({item.key for item in dataset.held_out}) == 1


def test_ids_of_another_tokenizer_are_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampled with the tokenizer .*tiny_policy.*, and model has another"):
        load_transcripts(TranscriptsConfig(from_run=run), resolve_model(CODER), 0)


def test_a_run_whose_tokenizer_is_gone_is_refused(run: Path) -> None:
    (run / "config.json").write_text(json.dumps({"model": str(run / "gone")}))
    with pytest.raises(ConfigError, match="neither its model nor a checkpoint is there any more"):
        load_transcripts(TranscriptsConfig(from_run=run), MODEL, 0)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run directory"):
        load_transcripts(TranscriptsConfig(from_run=tmp_path), MODEL, 0)
