"""Evaluations beside training: each of one version, none in training's way for longer than it must be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from test_loop import World

from agentrl import manifest
from agentrl.errors import RunError, SwapError
from agentrl.train.config import EvaluationConfig
from agentrl.train.retention import Retention
from agentrl.types import Batch, Task

HELD_OUT = "t1000"
"""The first of the three held-out tasks."""


def in_run(**config: Any) -> EvaluationConfig:
    """After each version, and at neither end."""
    return EvaluationConfig(**{"tasks": 3, "every": 1, "at_start": False, "at_end": False, **config})


def sampled_under(world: World) -> dict[str, set[int]]:
    """Of each evaluation, the versions of its tokens."""
    found: dict[str, set[int]] = {}
    for trajectory in world.store.iterate(mode="eval"):
        versions = {span.version for call in trajectory.calls for span in call.versions}
        found.setdefault(str(trajectory.metadata["group_id"])[:7], set()).update(versions)
    return found


class OwnEngines:
    """Publishes to them. `refuse` a version, and none of them takes it."""

    def __init__(self, *refuse: int) -> None:
        self.versions: list[int] = []
        self._refuse = refuse

    async def publish(self, version: int) -> dict[str, float]:
        if version in self._refuse:
            raise SwapError("no engine took it")
        self.versions.append(version)
        return {}


async def test_the_trainer_steps_on_during_an_evaluation_and_the_next_version_waits_for_it(tmp_path: Path):
    gate, seen = asyncio.Event(), []

    def on_step(batch: Batch) -> None:
        if batch.version == 1:
            seen.append((world.engines.version, len(world.recorder.evaluations)))
            asyncio.get_running_loop().call_soon(gate.set)

    world = World(
        tmp_path,
        steps=2,
        on_step=on_step,
        hold=lambda task: gate if task.id == HELD_OUT else None,
        evaluation=in_run(),
    )
    await world.loop.run()
    assert seen == [(1, 0)], "the second step was computed while the evaluation of version 1 was under way"
    assert [record.version for record in world.recorder.evaluations] == [1, 2]
    assert sampled_under(world) == {"eval-v1": {1}, "eval-v2": {2}}
    assert "evaluation" in world.recorder.steps[1].phases, "what it waited is a phase of the step"
    assert [(e.version, len(e.groups)) for e in world.traces.evaluations] == [(1, 3), (2, 3)]


async def test_eight_held_out_tasks_are_played_to_their_end_under_one_version_and_none_is_trained(tmp_path: Path):
    """Case 85: that of version 2 is slow, and version 3 falls due meanwhile. Of 2 groups of 2 a step is 4 rows."""
    gate = asyncio.Event()

    def on_step(batch: Batch) -> None:
        if batch.version == 2:
            asyncio.get_running_loop().call_soon(gate.set)

    world = World(
        tmp_path,
        steps=4,
        on_step=on_step,
        hold=lambda task: gate if task.id == HELD_OUT else None,
        evaluation=in_run(every=2, tasks=8),
    )
    await world.loop.run()
    exams = [exam for exam in world.store.iterate(mode="eval") if exam.metadata["group_id"].startswith("eval-v2-")]
    assert [exam.stop_reason for exam in exams] == ["done"] * 8
    assert sampled_under(world) == {"eval-v2": {2}, "eval-v4": {4}}
    trained = [[row.session_id for row in batch.rows] for batch in world.trainer.batches]
    assert [len(of_step) for of_step in trained] == [4, 4, 4, 4]
    evaluated = {exam.session_id for exam in world.store.iterate(mode="eval")}
    assert not evaluated & {session_id for of_step in trained for session_id in of_step}
    assert not evaluated & {settled.session_id for settled in world.store.settlements()}


async def test_on_engines_of_their_own_evaluations_hold_up_nothing_and_catch_up(tmp_path: Path):
    """That of version 1 goes on until version 3 is made; version 2 is left out and counted."""
    gate, own = asyncio.Event(), OwnEngines()

    async def on_step(batch: Batch) -> None:
        if batch.version == 2:
            gate.set()
            await world.loop.evaluations.ended()

    world = World(
        tmp_path,
        steps=3,
        on_step=on_step,
        hold=lambda task: gate if task.id == HELD_OUT else None,
        evaluation=in_run(),
        own=own,
    )
    await world.loop.run()
    assert own.versions == [1, 3]
    assert [record.version for record in world.recorder.evaluations] == [1, 3]
    assert world.recorder.summary(ended="done").failed_evaluations == {"busy": 1}
    assert "evaluation" in world.recorder.steps[0].phases, "giving them the weights is a phase"


@pytest.mark.parametrize(
    ("reason", "config", "rollouts"),
    [
        ("no_reward", {}, {"reward": lambda task, index: None if task.seed >= 1000 else float(index % 2)}),
        ("timeout", {"timeout_s": 0.01}, {"hold": lambda task: asyncio.Event() if task.seed >= 1000 else None}),
    ],
)
async def test_an_evaluation_that_fails_is_named_and_counted_and_the_run_goes_on(
    tmp_path: Path, reason: str, config: dict[str, Any], rollouts: dict[str, Any]
):
    world = World(tmp_path, steps=2, evaluation=in_run(at_end=True, **config), **rollouts)
    await world.loop.run()
    summary = world.recorder.summary(ended="done")
    assert (summary.steps, summary.failed_evaluations) == (2, {reason: 2})
    assert world.recorder.evaluations == []
    assert world.recorder.steps[1].failed_evaluations == {reason: 1}


async def test_what_its_own_engines_do_not_take_is_counted(tmp_path: Path):
    world = World(tmp_path, steps=2, evaluation=in_run(), own=OwnEngines(1))
    await world.loop.run()
    assert world.recorder.summary(ended="done").failed_evaluations == {"engines": 1}
    assert [record.version for record in world.recorder.evaluations] == [2]


async def test_what_fails_in_an_unforeseen_way_is_counted_too(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def reward(task: Task, index: int) -> float:
        if task.id == HELD_OUT:
            raise ZeroDivisionError
        return float(index % 2)

    world = World(tmp_path, steps=1, evaluation=in_run(), reward=reward)
    await world.loop.run()
    assert world.recorder.summary(ended="done").failed_evaluations == {"failed": 1}
    assert "ZeroDivisionError" in caplog.text


async def test_a_run_that_fails_ends_its_evaluation(tmp_path: Path):
    def on_step(batch: Batch) -> None:
        if batch.version == 1:
            raise RunError("the trainer is gone")

    never = asyncio.Event()
    world = World(
        tmp_path,
        steps=2,
        on_step=on_step,
        hold=lambda task: never if task.id == HELD_OUT else None,
        evaluation=in_run(),
    )
    with pytest.raises(RunError, match="the trainer is gone"):
        await world.loop.run()
    assert "eval-v1-0000" in world.rollouts.cancelled


async def test_where_engines_sleep_in_a_step_the_evaluation_is_done_before_it(tmp_path: Path):
    seen: list[int] = []
    world = World(
        tmp_path,
        steps=2,
        on_step=lambda batch: seen.append(len(world.recorder.evaluations)),
        evaluation=in_run(),
        beside=False,
    )
    await world.loop.run()
    assert seen == [0, 1]


async def test_each_so_many_versions_are_evaluated_and_the_last_once(tmp_path: Path):
    world = World(tmp_path, steps=4, evaluation=in_run(every=2, at_start=True, at_end=True))
    await world.loop.run()
    assert [record.version for record in world.recorder.evaluations] == [0, 2, 4]


async def test_a_checkpoint_has_the_result_of_its_version(tmp_path: Path):
    world = World(tmp_path, steps=2, evaluation=in_run())
    await world.loop.run()
    scores = manifest.read(tmp_path / "checkpoints" / "v2").scores
    assert (scores["success"], scores["evaluated_success"], scores["evaluated_reward"]) == (0.5, 0.0, 0.0)
    manifest.check(tmp_path / "checkpoints" / "v2")


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tasks": 0, "every": 2}, "every = 2, and nothing is evaluated, as tasks = 0"),
        ({"replicas": 1, "at_start": False, "at_end": False}, "replicas = 1, and nothing is evaluated, as at_start"),
    ],
)
def test_keys_that_would_not_be_read_are_refused(keys: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why):
        EvaluationConfig(**keys)


def test_the_best_checkpoints_are_those_of_the_best_evaluations():
    held = {
        1: {"success": 0.9},
        2: {"success": 0.1, "evaluated_success": 0.4},
        3: {"success": 0.2, "evaluated_success": 0.3},
        4: {},
    }
    assert Retention(1, 2, "success").best(held) == 2
    assert Retention(1, 2, "success").to_delete(held, newest_written=4) == [1]
