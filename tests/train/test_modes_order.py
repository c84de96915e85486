"""What happens in which order in each mode: what may be sampled while the trainer steps, and under which version."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from twins import TwinEngines, TwinRollouts, TwinScorer, TwinSwap, TwinTrainer, in_one_thread

from agentrl.observe.recorder import Recorder
from agentrl.store.memory import MemoryStore
from agentrl.train.batch_log import MemoryBatchLog
from agentrl.train.colocated import ColocatedTrainer
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher
from agentrl.train.saver import CheckpointSaver
from agentrl.types import Batch, Group, Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


class Events(list[str]):
    """In order: `play t0`, `done t0`, `step 0`, `swap 1` (begun), `version 1` (committed), `sleep`."""


class Rollouts(TwinRollouts):
    events: Events

    async def run_group(self, group_id: str, task: Task, **how: Any) -> Group:
        self.events.append(f"play {task.id}")
        group = await super().run_group(group_id, task, **how)
        self.events.append(f"done {task.id}")
        return group


class Engines(TwinEngines):
    events: Events

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[TwinSwap]:
        self.events.append(f"swap {version}")
        async with super().swap(version) as swap:
            yield swap
        self.events.append(f"version {version}")

    async def sleep(self) -> None:
        self.events.append("sleep")


class World:
    """A loop of two groups of two a step that writes down what happens."""

    def __init__(self, tmp_path: Path, *, max_lag: int, steps: int = 3, sleeps: bool = False) -> None:
        in_one_thread()
        self.events = Events()
        store = MemoryStore()
        engines = Engines(store)
        rollouts = Rollouts(store, engines)
        engines.events = rollouts.events = self.events

        async def step(batch: Batch) -> None:
            """Takes a hundred turns of the loop, in which others may do what they like."""
            self.events.append(f"step {batch.version}")
            for _ in range(100):
                await asyncio.sleep(0)

        trainer = TwinTrainer(tmp_path, on_step=step)
        config = LoopConfig(steps=steps, groups_per_step=2)
        staleness, evaluation = StalenessConfig(max_lag=max_lag), EvaluationConfig(tasks=0)
        self.recorder = Recorder([])
        self.loop = TrainLoop(
            config=config,
            staleness=staleness,
            algorithm=AlgorithmConfig(),
            evaluation=evaluation,
            log=MemoryBatchLog(),
            saver=CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(), trainer),
            producer=GroupProducer(
                tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count()),
                rollouts=rollouts,
                scorer=TwinScorer(),
                store=store,
                loop=config,
                staleness=staleness,
                group_size=2,
            ),
            evaluations=Evaluations(
                Evaluator(
                    tasks=[], rollouts=rollouts, scorer=TwinScorer(), config=evaluation, progress=lambda *_: None
                ),
                evaluation,
                self.recorder,
            ),
            trainer=ColocatedTrainer(trainer, engines) if sleeps else trainer,
            publisher=GroupPublisher(trainer=trainer, engines=engines),
            estimate=group_advantages,
            recorder=self.recorder,
        )

    def lags(self) -> list[dict[int, int]]:
        """Of each step, lag -> trained tokens. A step has 2 groups x 2 episodes x 3 tokens."""
        return [record.staleness for record in self.recorder.steps]

    def during_steps(self) -> list[str]:
        """What was begun or done between the beginning of a step and the version that it made."""
        inside, found = False, []
        for event in self.events:
            if event.startswith("version"):
                inside = False
            elif inside and event.startswith(("play", "done")):
                found.append(event)
            inside |= event.startswith("step")
        return found


async def test_synchronous_nothing_is_sampled_between_the_batch_and_the_committed_version(tmp_path: Path):
    """Case 59 over a whole episode: what is trained was begun and ended under one version."""
    world = World(tmp_path, max_lag=0, steps=2)
    await world.loop.run()
    assert sorted(world.events[:4]) == ["done t0", "done t1", "play t0", "play t1"]
    assert world.events[4:7] == ["step 0", "swap 1", "version 1"]
    assert sorted(world.events[7:11]) == ["done t2", "done t3", "play t2", "play t3"]
    assert world.events[11:] == ["step 1", "swap 2", "version 2"]
    assert world.lags() == [{0: 12}, {0: 12}]


async def test_one_step_off_the_next_steps_groups_are_sampled_in_a_step_and_trained_one_version_later(tmp_path: Path):
    """Four groups begin under version 0, and two more after each version: every batch but the first is one old."""
    world = World(tmp_path, max_lag=1, steps=3)
    await world.loop.run()
    assert sorted(event for event in world.events[: world.events.index("version 1")] if event.startswith("play")) == [
        "play t0",
        "play t1",
        "play t2",
        "play t3",
    ]
    assert world.lags() == [{0: 12}, {1: 12}, {1: 12}]


@pytest.mark.parametrize("max_lag", [2, 4])
async def test_asynchronous_the_lag_grows_to_the_bound_and_never_past_it(tmp_path: Path, max_lag: int):
    """Twins sample at once: (K + 1) steps' groups are ready under version 0, and every later one waits K versions."""
    world = World(tmp_path, max_lag=max_lag, steps=max_lag + 3)
    await world.loop.run()
    assert world.lags() == [{min(step, max_lag): 12} for step in range(max_lag + 3)]


async def test_colocated_engines_sleep_before_each_step_when_nothing_is_in_flight_and_a_swap_follows(tmp_path: Path):
    world = World(tmp_path, max_lag=0, steps=2, sleeps=True)
    await world.loop.run()
    control = [event for event in world.events if not event.startswith(("play", "done"))]
    assert control == ["sleep", "step 0", "swap 1", "version 1", "sleep", "step 1", "swap 2", "version 2"]
    assert world.during_steps() == []
    first = world.events.index("sleep")
    assert world.events[:first].count("done t0") == world.events[:first].count("done t1") == 1
    assert "engines_sleep_s" in world.recorder.steps[0].trainer


async def test_colocated_a_step_without_a_batch_leaves_the_engines_awake(tmp_path: Path):
    world = World(tmp_path, max_lag=0, steps=1, sleeps=True)
    world.loop.algorithm = AlgorithmConfig(zero_variance="drop")
    world.loop.producer._rollouts._reward = lambda task, index: 1.0  # type: ignore[attr-defined]
    await world.loop.run()
    assert [event for event in world.events if not event.startswith(("play", "done"))] == ["swap 1", "version 1"]
