"""What is about to be trained is on the disk whole, comes back equal, and is gone once a checkpoint has it."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path

import pytest
from twins import TwinTrainer

from agentrl.errors import CheckpointError, RunError
from agentrl.store.base import Settlement
from agentrl.train.batch import PreparedBatch
from agentrl.train.batch_log import BatchLog, DiskBatchLog, MemoryBatchLog, NoBatchLog
from agentrl.train.config import CheckpointConfig
from agentrl.train.saver import CheckpointSaver
from agentrl.types import Batch, TrainRow


def prepared(version: int) -> PreparedBatch:
    row = TrainRow(
        session_id="s0",
        token_ids=[1, 70_000],
        loss_mask=[0, 1],
        logprobs=[0.0, -0.1],
        advantages=[0.0, 1 / 3],
        on_policy=[0, 1],
        rewards=[0.0, 1e-300],
        calls=[0, 2],
        temperature=0.7,
    )
    return PreparedBatch(
        Batch(version=version, rows=[row]),
        settlements={"g": [Settlement(session_id="s0", outcome="trained", step=version + 1, tokens=1)]},
        session_lags={"s0": Counter({0: 1})},
        dropped_tokens=Counter({"stale": 2}),
        no_signal_groups=1,
        multi_version_trajectories=1,
        rewards=[1.0, None],
        sampled_tokens=3,
    )


@pytest.fixture(params=["disk", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> BatchLog:
    return DiskBatchLog(tmp_path / "batches") if request.param == "disk" else MemoryBatchLog()


def test_a_batch_and_its_books_come_back_equal(log: BatchLog):
    log.write(prepared(7))
    found = log.read(7)
    assert found == prepared(7)
    found.without_gradient("step_skipped", ["s0"])
    assert (found.dropped_tokens, found.session_lags) == (Counter({"stale": 2, "step_skipped": 1}), {})


def test_entries_are_in_order_of_their_numbers_until_they_are_forgotten(log: BatchLog):
    for version in (9, 10, 125):
        log.write(prepared(version))
    assert log.versions() == [9, 10, 125]
    log.forget(10)
    assert log.versions() == [10, 125]
    with pytest.raises(CheckpointError):
        log.read(9)


def test_an_empty_batch_is_an_entry_too(log: BatchLog):
    log.write(PreparedBatch(Batch(version=3, rows=[]), settlements={}))
    assert log.read(3).batch.rows == []


def test_a_damaged_entry_is_named(tmp_path: Path):
    log = DiskBatchLog(tmp_path)
    log.write(prepared(1))
    path = tmp_path / "v1"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(CheckpointError, match="v1 is damaged"):
        log.read(1)


def test_what_a_dying_driver_left_half_written_is_no_entry_and_goes(tmp_path: Path):
    log = DiskBatchLog(tmp_path)
    (tmp_path / ".v4.partial").write_bytes(b"half")
    assert log.versions() == []
    log.forget(0)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_says_that_nothing_was_trained_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    log = DiskBatchLog(tmp_path, waits_s=0.0)
    with pytest.raises(RunError, match=r"batch of version 2 cannot be written.*No space left.*--resume"):
        log.write(prepared(2))
    assert log.versions() == []


def test_a_disk_that_is_full_for_a_moment_costs_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fsync, refusals = os.fsync, [OSError(errno.ENOSPC, "No space left on device")] * 2

    def full_at_first(descriptor: int) -> None:
        if refusals:
            raise refusals.pop()
        fsync(descriptor)

    monkeypatch.setattr("os.fsync", full_at_first)
    log = DiskBatchLog(tmp_path)
    log.write(prepared(2))
    assert log.versions() == [2]
    assert log.read(2).batch.version == 2


@pytest.mark.parametrize(("trainer_state", "left"), [(True, [2]), (False, [0, 1, 2])])
async def test_a_checkpoint_that_holds_the_trainer_ends_the_entries_before_it(
    tmp_path: Path, trainer_state: bool, left: list[int]
):
    log = MemoryBatchLog()
    config = CheckpointConfig(trainer_state=trainer_state)
    saver = CheckpointSaver(tmp_path / "checkpoints", config, TwinTrainer(tmp_path), log)
    for version in range(3):
        log.write(prepared(version))
    await saver.save(2, scores={}, run={})
    assert log.versions() == left


def test_where_nothing_is_kept_nothing_can_be_trained_again():
    log = NoBatchLog()
    log.write(prepared(0))
    assert log.versions() == []
    with pytest.raises(CheckpointError, match="trainer_state is false"):
        log.read(0)
