"""A driver is killed at any moment, and another goes on: each task once, and the weights of an undisturbed run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mortal import Fuse, Mortals

from agentrl.observe.history import read_history

STEPS = 3
STRIDE = 11  # of the moments that are tried in `make test`: coprime to the lengths of what repeats in a step


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written outlives these drivers anyway: they die, and the machine does not."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


async def run_of_two_lives(directory: Path, killed_at: int, *, max_lag: int) -> tuple[Mortals, bool]:
    """Whether the first driver was killed at all."""
    directory.mkdir()
    world = Mortals(directory, steps=STEPS, max_lag=max_lag)
    died = not await world.live(Fuse(killed_at))
    if died:
        assert await world.live(Fuse()), "the second driver comes to the end"
    return world, died


def books_are_right(world: Mortals) -> None:
    groups = list(world.store.groups())
    assert [group.group_id for group in groups if group.outcome is None] == []
    assert Counter(group.step for group in groups if group.outcome == "trained") == {1: 2, 2: 2, 3: 2}
    drawn = [group.task.id for group in groups]
    assert drawn == [f"t{number}" for number in range(len(drawn))], "the task order goes on: none lost, none twice"
    settled = Counter(settlement.session_id for settlement in world.store.settlements())
    sampled = {trajectory.session_id for trajectory in world.store.iterate(mode="train")}
    assert (set(settled.values()), set(settled)) == ({1}, sampled), "every trajectory is settled once"
    trained = [settlement for settlement in world.store.settlements() if settlement.outcome == "trained"]
    assert sum(settlement.tokens for settlement in trained) == STEPS * 12  # 2 groups x 2 attempts x 3 tokens


def metrics_are_whole(world: Mortals) -> None:
    history = read_history(world.directory / "metrics.jsonl")
    assert [record.step for record in history.steps] == [1, 2, 3], "told once, in order"
    assert [record.version for record in history.evaluations] == [0, 3]
    assert world.recorder.summary(ended="done").steps == STEPS
    elapsed = [record.elapsed_s for record in history.steps]
    assert elapsed == sorted(elapsed)


async def undisturbed(directory: Path, *, max_lag: int = 0) -> tuple[Mortals, int]:
    """And how many moments there were to kill its driver at."""
    directory.mkdir()
    world, fuse = Mortals(directory, steps=STEPS, max_lag=max_lag), Fuse()
    assert await world.live(fuse)
    return world, fuse.burnt


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
async def test_killed_anywhere_a_synchronous_run_ends_with_the_weights_of_one_that_was_not(tmp_path: Path, stride: int):
    whole, moments = await undisturbed(tmp_path / "whole")
    lineage = dict(whole.served)
    assert sorted(lineage) == [1, 2, 3]
    for killed_at in range(1, moments + 1, stride):
        world, died = await run_of_two_lives(tmp_path / f"{killed_at}", killed_at, max_lag=0)
        assert died
        assert set(world.served) <= set(lineage.items()), f"killed at {killed_at}: other weights"
        assert dict(world.served)[STEPS] == lineage[STEPS]
        books_are_right(world)
        metrics_are_whole(world)


@pytest.mark.parametrize("stride", [STRIDE, pytest.param(1, marks=pytest.mark.slow)])
async def test_killed_anywhere_an_asynchronous_run_serves_each_version_with_the_same_weights(
    tmp_path: Path, stride: int
):
    """What is sampled under which version depends on the death; no version has two meanings all the same."""
    _, moments = await undisturbed(tmp_path / "whole", max_lag=1)
    for killed_at in range(2, moments + 1, stride):
        world, _ = await run_of_two_lives(tmp_path / f"{killed_at}", killed_at, max_lag=1)
        assert len(set(world.served)) == len(dict(world.served)) == STEPS, f"killed at {killed_at}"
        books_are_right(world)
        metrics_are_whole(world)


async def test_a_new_drivers_engines_have_the_version_it_goes_on_at_before_anything_is_sampled(tmp_path: Path):
    """Case 71: they began with the first weights, and serve the trainer's when the first task is played."""
    whole, moments = await undisturbed(tmp_path / "whole")
    world, died = await run_of_two_lives(tmp_path / "killed", moments * 2 // 3, max_lag=0)
    assert died
    [resume] = world.recorder.resumes
    assert resume.version == 2
    [served_first, *_] = world.served[world.served_before[1] :]
    assert served_first == (2, dict(whole.served)[2])
    again = [trajectory for trajectory in world.store.iterate() if trajectory.session_id.endswith("~2")]
    versions = [span.version for trajectory in again for span in trajectory.calls[0].versions]
    assert min(versions) == 2


async def test_a_driver_that_dies_again_while_it_takes_up_the_run_leaves_nothing_that_the_next_one_minds(
    tmp_path: Path,
):
    """Killed in the middle, then after 7, 14, 21, … dealings of each driver that takes the run up."""
    whole, moments = await undisturbed(tmp_path / "whole")
    world = Mortals(tmp_path / "often", steps=STEPS)
    world.directory.mkdir()
    assert not await world.live(Fuse(moments // 2))
    lives = 1
    while not await world.live(Fuse(7 * lives)):
        lives += 1
        assert lives < moments
    assert lives > 3
    assert set(world.served) <= set(whole.served)
    books_are_right(world)
    metrics_are_whole(world)
    assert world.recorder.summary(ended="done").resumes >= 1
