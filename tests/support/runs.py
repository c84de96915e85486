"""Builds run directories as a training run leaves them, without running one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from trajectories import boot, task, two_turns

from agentrl.store.base import TRAINED, Settlement
from agentrl.store.sql import SqlStore
from agentrl.types import SwapRecord, Trajectory


def sampled(trajectory: Trajectory) -> int:
    return sum(sum(row.loss_mask) for row in trajectory.rows)


def a_run(
    path: Path,
    *,
    trained: Sequence[Trajectory] = (),
    evaluated: Sequence[Trajectory] = (),
    swaps: Sequence[SwapRecord] = (boot(),),
    max_lag: int | None = 1,
    ended: str | None = None,
) -> Path:
    """Every trajectory of `trained` is a group of its own, trained at step 1."""
    path.mkdir()
    config = {} if max_lag is None else {"staleness": {"max_lag": max_lag}}
    (path / "config.json").write_text(json.dumps(config))
    if ended is not None:
        (path / "summary.json").write_text(json.dumps({"ended": ended}))
    store = SqlStore.at(path / "trajectories.db")
    for record in swaps:
        store.record_swap(record)
    for index, trajectory in enumerate(trained):
        group_id = f"g{index}"
        trajectory.metadata["group_id"] = group_id
        trajectory.finished_at = float(index)
        store.admit(group_id, task(), 0)
        store.save(trajectory)
        session_id = trajectory.session_id
        tokens = sampled(trajectory)
        store.settle(group_id, TRAINED, 1, [Settlement(session_id=session_id, outcome=TRAINED, step=1, tokens=tokens)])
    for trajectory in evaluated:
        store.save(trajectory)
    store.close()
    return path


def a_clean_run(path: Path) -> Path:
    """Two trained trajectories of 32 sampled tokens and one evaluation; version 0 throughout."""
    exam = two_turns("exam", group_id=None, mode="eval").build(finished_at=9.0)
    return a_run(path, trained=[two_turns("s0").build(), two_turns("s1").build()], evaluated=[exam], ended="done")
