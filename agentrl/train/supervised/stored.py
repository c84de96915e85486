"""What a run has sampled, as rows to learn from: the recorded ids and masks, never tokenised again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from agentrl.assets import resolve_model
from agentrl.digest import digest_of_file
from agentrl.errors import ConfigError
from agentrl.rundir import RunDirectory
from agentrl.store.sql import SqlStore
from agentrl.types import Row, Trajectory

TOKENIZER = "tokenizer.json"


class StoredRow(NamedTuple):
    key: str  # of its task: what is held out is held out with all attempts at it
    session_id: str
    row: Row


def stored_rows(run: Path, *, min_reward: float | None, left_out: Counter[str]) -> Iterator[StoredRow]:
    """Rows of the training trajectories of `run`, in the order in which they finished.

    `left_out` counts the trajectories that are not among them, by reason. Raises ConfigError when there is no such run.
    """
    store = SqlStore(_store_url(RunDirectory(run)))
    try:
        for trajectory in store.iterate(mode="train"):
            reason = _why_not(trajectory, min_reward)
            if reason:
                left_out[reason] += 1
                continue
            key = trajectory.task.id if trajectory.task else trajectory.session_id
            yield from (StoredRow(key, trajectory.session_id, row) for row in trajectory.rows if any(row.loss_mask))
    finally:
        store.close()


def check_tokenizer(run: Path, model: Path) -> None:
    """Raises ConfigError unless `run` was sampled with the tokenizer of `model`: its ids would mean other words."""
    theirs = _tokenizers_of(RunDirectory(run))
    if not theirs:
        raise ConfigError(
            f"data.from_run = {str(run)!r}: neither its model nor a checkpoint is there any more, so its tokenizer is "
            "not known; put the model back where its config.json says"
        )
    if digest_of_file(theirs[0]) != digest_of_file(model / TOKENIZER):
        raise ConfigError(
            f"data.from_run = {str(run)!r} was sampled with the tokenizer {theirs[0]}, and model has another; its ids "
            "cannot be trained on this model. Write its conversations to a JSONL file and give that as data.train"
        )


def _why_not(trajectory: Trajectory, min_reward: float | None) -> str | None:
    if not any(any(row.loss_mask) for row in trajectory.rows):
        return "trajectory_without_rows"
    if min_reward is None:
        return None
    if trajectory.reward is None:
        return "reward_missing"
    return "reward_below_minimum" if trajectory.reward < min_reward else None


def _store_url(directory: RunDirectory) -> str:
    url: str | None = _config_of(directory).get("store_url")
    if url is None and not directory.store.is_file():
        raise ConfigError(f"data.from_run: {directory.root} has no {directory.store.name}; name a run that has sampled")
    return url or directory.store_url


def _config_of(directory: RunDirectory) -> dict[str, str]:
    try:
        config: dict[str, str] = json.loads(directory.config.read_text())
    except OSError as error:
        raise ConfigError(f"data.from_run = {str(directory.root)!r} is no run directory: {error}") from error
    return config


def _tokenizers_of(directory: RunDirectory) -> Sequence[Path]:
    model = _config_of(directory).get("model", "")
    exported = sorted(directory.checkpoints.glob(f"*/{TOKENIZER}"))
    try:
        return [*exported, resolve_model(model) / TOKENIZER]
    except ConfigError:
        return exported
