"""What has to be trained again after a death follows from what is on the disk, wherever the death fell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import CheckpointError
from agentrl.train.replay import Replay, plan_replay


def test_the_newest_checkpoint_and_the_batches_since():
    replay = plan_replay(checkpoints=[20, 40], logged=[40, 41, 42], reached=42)
    assert (replay, list(replay.batches)) == (Replay(checkpoint=40, version=43), [40, 41, 42])


def test_before_the_first_checkpoint_it_is_the_initial_model():
    assert plan_replay(checkpoints=[], logged=[0, 1], reached=2) == Replay(checkpoint=None, version=2)
    assert plan_replay(checkpoints=[], logged=[], reached=0) == Replay(checkpoint=None, version=0)


def test_what_an_interrupted_forgetting_left_is_not_trained_again():
    assert plan_replay(checkpoints=[2], logged=[0, 1], reached=2) == Replay(checkpoint=2, version=2)


@pytest.mark.parametrize(
    ("checkpoints", "logged", "reached", "message"),
    [
        ([], [], 3, "had reached version 3, and from the initial model only version 0"),
        ([2], [2, 4], 3, "had reached version 4, and from checkpoint v2 only version 3"),
        ([2], [12], 12, "had reached version 12, and from checkpoint v2 only version 2"),
    ],
)
def test_a_version_that_cannot_be_made_again_is_named(checkpoints: list, logged: list, reached: int, message: str):
    with pytest.raises(CheckpointError, match=message):
        plan_replay(checkpoints=checkpoints, logged=logged, reached=reached)


class Disk:
    """What the loop does to the disk, one durable act after the other."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.checkpoints: set[int] = set()
        self.logged: set[int] = set()
        self.settled: list[int] = []
        self.published = 0

    def acts(self, version: int):
        """Of one step, in order; each may be the last one."""
        yield lambda: self.logged.add(version)
        yield lambda: self.publish(version + 1)
        yield lambda: self.settle(version + 1)
        if (version + 1) % self.every == 0:
            yield lambda: self.checkpoints.add(version + 1)
            for entry in sorted(self.logged):
                yield lambda entry=entry: self.logged.discard(entry)

    def publish(self, version: int) -> None:
        self.published = version

    def settle(self, step: int) -> None:
        if step not in self.settled:
            self.settled.append(step)

    def take_up(self) -> Replay:
        return plan_replay(
            checkpoints=self.checkpoints, logged=self.logged, reached=max([0, self.published, *self.settled])
        )


@given(st.integers(1, 4), st.lists(st.integers(0, 40), max_size=6))
def test_wherever_it_dies_each_step_is_settled_once_and_no_version_is_lost(every: int, lives: list[int]):
    """Each life makes so many durable acts and dies; the last one ends the run at version 9."""
    disk, version = Disk(every), 0
    for acts_left in [*lives, 10_000]:
        replay = disk.take_up()
        assert replay.version >= disk.published, "a version that was served is made again"
        assert replay.version <= version + 1
        assert len(replay.batches) <= every, "the log is bounded"
        for again in replay.batches:
            disk.settle(again + 1)
        version = replay.version
        if len(replay.batches) >= every:
            disk.checkpoints.add(version)  # `CheckpointSaver.overdue`
        alive = iter(range(acts_left))
        while version < 9:
            for act in disk.acts(version):
                if next(alive, None) is None:
                    break
                act()
            else:
                version += 1
                continue
            break
    assert (version, disk.settled) == (9, list(range(1, 10)))
