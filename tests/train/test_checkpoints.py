"""A checkpoint is whole or not there; what is damaged is named; a run goes on from one, driver and trainer together."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from twins import TwinTrainer

from agentrl import manifest
from agentrl.errors import CheckpointError, TrainerError
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.config import CheckpointConfig
from agentrl.train.saver import CheckpointSaver


def checkpoints(path: Path, **config: object) -> Checkpoints:
    return Checkpoints(path / "checkpoints", CheckpointConfig(**{"keep_last": None, **config}).retention)


def save(held: Checkpoints, *versions: int, success: float = 0.0) -> None:
    for version in versions:
        partial = held.begin(version)
        (partial / "trainer").mkdir(parents=True)
        (partial / "model.safetensors").write_bytes(b"weights of %d" % version)
        (partial / "trainer" / "state.json").write_text(str(version))
        held.commit(version, scores={"success": success}, run={"version": version})


def names(held: Checkpoints) -> list[str]:
    return sorted(path.name for path in held.directory.iterdir())


def test_the_latest_is_the_highest_number(tmp_path: Path):
    """Case 70: 125 > 10 > 9, in whatever order they were saved."""
    held = checkpoints(tmp_path)
    assert held.latest() is None
    save(held, 9, 125, 10)
    assert held.latest() == 125
    assert list(held.whole()) == [9, 10, 125]


def test_one_that_is_being_written_is_not_there_yet(tmp_path: Path):
    held = checkpoints(tmp_path)
    save(held, 1)
    (held.begin(2) / "trainer").mkdir(parents=True)
    assert held.latest() == 1
    assert names(held) == [".v2.partial", "v1"]


def test_what_an_interrupted_save_left_is_gone_at_the_next_one(tmp_path: Path):
    held = checkpoints(tmp_path)
    (held.begin(1) / "trainer").mkdir(parents=True)
    save(held, 2)
    assert names(held) == ["v2"]


def test_a_missing_file_is_named_and_an_older_whole_one_is_the_latest(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Case 70: delete one file."""
    held = checkpoints(tmp_path)
    save(held, 1, 2)
    (held.path(2) / "trainer" / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"v2/trainer/state.json is missing; restore it .* or take another"):
        manifest.check(held.path(2))
    with caplog.at_level(logging.WARNING):
        assert held.latest() == 1
    assert "v2/trainer/state.json is missing" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"weights of", "has 10 bytes instead of 12"), (b"Weights of 1", "is damaged: its digest")],
)
def test_a_changed_file_is_named(tmp_path: Path, content: bytes, message: str):
    held = checkpoints(tmp_path)
    save(held, 1)
    (held.path(1) / "model.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=f"v1/model.safetensors {message}"):
        manifest.check(held.path(1))


def test_without_its_manifest_it_is_no_checkpoint(tmp_path: Path):
    held = checkpoints(tmp_path)
    save(held, 1)
    (held.path(1) / "manifest.json").unlink()
    assert held.latest() is None
    with pytest.raises(CheckpointError, match=r"v1 is not a whole checkpoint: it has no manifest.json"):
        manifest.check(held.path(1))


def test_a_manifest_of_another_format_is_refused(tmp_path: Path):
    held = checkpoints(tmp_path)
    save(held, 1)
    path = held.path(1) / "manifest.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match="is of format 2, this agentrl reads 1"):
        manifest.read(held.path(1))


def test_keeping_one_leaves_the_newest(tmp_path: Path):
    held = checkpoints(tmp_path, keep_last=1)
    save(held, 1, 2, 3)
    assert names(held) == ["v3"]


def test_the_best_survives_the_last(tmp_path: Path):
    held = checkpoints(tmp_path, keep_last=1, keep_best=1)
    for version, success in ((1, 0.4), (2, 0.9), (3, 0.6), (4, 0.1)):
        save(held, version, success=success)
    assert names(held) == ["v2", "v4"]
    assert held.best() == 2


def test_nothing_is_deleted_when_the_new_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The disk is full while the new one is sealed."""
    held = checkpoints(tmp_path, keep_last=1)
    save(held, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "flush", full)
    with pytest.raises(OSError, match="No space left"):
        save(held, 2)
    assert held.latest() == 1


def test_saving_a_version_again_replaces_it(tmp_path: Path):
    held = checkpoints(tmp_path)
    save(held, 1, success=0.1)
    save(held, 1, success=0.2)
    assert held.whole()[1].scores == {"success": 0.2}
    assert names(held) == ["v1"]


def test_a_version_whose_replacement_never_came_is_put_back(tmp_path: Path):
    held = checkpoints(tmp_path)
    save(held, 1)
    held.path(1).rename(held.directory / ".v1.replaced")
    held.tidy()
    assert held.latest() == 1


async def test_a_run_goes_on_with_driver_and_trainer_of_the_same_version(tmp_path: Path):
    trainer = TwinTrainer(tmp_path)
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(every=2), trainer)
    saved = await saver.save(4, scores={"reward": 0.5}, run={"version": 4, "drawn_tasks": 11})
    assert (
        saved["bytes"]
        == sum(path.stat().st_size for path in (tmp_path / "checkpoints/v4").rglob("*") if path.is_file())
        - (tmp_path / "checkpoints/v4/manifest.json").stat().st_size
    )
    assert {"export_s", "trainer_s", "seal_s"} <= saved.keys()
    assert await saver.restore(4) == {"version": 4, "drawn_tasks": 11}


async def test_parts_of_different_versions_are_refused(tmp_path: Path):
    """Case 70: trainer and rollout state are of the same step."""
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), TwinTrainer(tmp_path))
    for version in (1, 2):
        await saver.save(version, scores={}, run={})
    first, second = (tmp_path / f"checkpoints/v{version}" for version in (1, 2))
    (second / "trainer" / "state.json").write_text((first / "trainer" / "state.json").read_text())
    with pytest.raises(CheckpointError, match=r"v2/trainer/state.json is damaged"):
        await saver.restore(2)
    manifest.seal(second, 2)
    with pytest.raises(CheckpointError, match="v2 holds the trainer's version 1"):
        await saver.restore(2)


async def test_a_full_disk_is_told_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), TwinTrainer(tmp_path), waits_s=0.0)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(manifest, "seal", full)
    with pytest.raises(CheckpointError, match=r"checkpoint v3 cannot be written \(.*No space left.*free space, or set"):
        await saver.save(3, scores={}, run={})


@pytest.mark.parametrize("part", ["export", "save"])
async def test_a_disk_that_is_full_for_a_rank_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    """As `cluster.handles` tells of it: the rank's own error in one line."""
    trainer = TwinTrainer(tmp_path)
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), trainer, waits_s=0.0)

    async def full(*_: object) -> None:
        raise TrainerError(f"trainer rank 0 failed in {part}: SafetensorError: No space left on device")

    monkeypatch.setattr(trainer, part, full)
    told = rf"checkpoint v3 cannot be written \(trainer rank 0 failed in {part}: .*No space left.*free space, or set"
    with pytest.raises(CheckpointError, match=told):
        await saver.save(3, scores={}, run={})


@pytest.mark.parametrize("part", ["export", "save"])
async def test_a_disk_that_is_full_for_a_moment_costs_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
):
    trainer = TwinTrainer(tmp_path)
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), trainer)
    works, refusals = getattr(trainer, part), ["No space left on device", "Disk quota exceeded"]

    async def full_at_first(*arguments: object) -> None:
        if refusals:
            raise TrainerError(f"trainer rank 0 failed in {part}: SafetensorError: {refusals.pop()}")
        await works(*arguments)

    monkeypatch.setattr(trainer, part, full_at_first)
    monkeypatch.setattr("agentrl.train.saver.AGAIN_S", 0.0)
    await saver.save(3, scores={}, run={"n": 1})
    assert saver.checkpoints.latest() == 3
    assert await saver.restore(3) == {"n": 1}


async def test_what_is_no_want_of_room_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trainer, tries = TwinTrainer(tmp_path), []
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), trainer)

    async def broken(*_: object) -> None:
        tries.append(1)
        raise TrainerError("trainer rank 0 failed in export: RuntimeError: out of memory")

    monkeypatch.setattr(trainer, "export", broken)
    with pytest.raises(CheckpointError, match="out of memory"):
        await saver.save(3, scores={}, run={})
    assert len(tries) == 1


async def test_without_trainer_state_only_the_weights_are_saved(tmp_path: Path):
    trainer = TwinTrainer(tmp_path)
    saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(trainer_state=False), trainer)
    await saver.save(1, scores={}, run={})
    assert (trainer.exports, trainer.saves) == ([1], [])
    assert sorted(path.name for path in (tmp_path / "checkpoints/v1").iterdir()) == [
        "manifest.json",
        "model.safetensors",
        "run.json",
    ]
