"""Which tasks a run trains, and in which order: the seed's doing alone, and none is lost where a pass ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from twins import TwinEngines, TwinRollouts, TwinScorer

from agentrl.store.memory import MemoryStore
from agentrl.train.batch import prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.environment import EnvironmentConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.task_source import TaskSource
from agentrl.train.tasks import training_tasks
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


async def trained(tasks: TaskSource, *, steps: int, groups_per_step: int) -> list[list[str]]:
    """The tasks of each step, sorted, and then those of the admitted groups in their order."""
    store, staleness = MemoryStore(), StalenessConfig(max_lag=0)
    engines = TwinEngines(store)
    producer = GroupProducer(
        tasks=tasks, rollouts=TwinRollouts(store, engines), scorer=TwinScorer(), store=store,
        loop=LoopConfig(steps=steps, groups_per_step=groups_per_step), staleness=staleness, group_size=2,
    )  # fmt: skip
    of_steps = []
    async with producer:
        for version in range(steps):
            groups = await producer.take(groups_per_step)
            prepared = prepare_batch(
                groups, version=version, staleness=staleness, algorithm=AlgorithmConfig(), estimate=group_advantages
            )
            of_steps.append(sorted(scored.group.task.id for scored in groups))
            engines.version = producer.version = version + 1
            producer.settle(prepared.settlements, step=version + 1)
    return [*of_steps, [record.task.id for record in store.groups()]]


def file_of(folder: Path, rows: int) -> EnvironmentConfig:
    path = folder / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{row}"}) + "\n" for row in range(rows)))
    return EnvironmentConfig(id="agentrl/Calculator-v0", train_tasks=path)


async def test_every_task_of_a_pass_is_trained_though_steps_do_not_divide_it(tmp_path: Path) -> None:
    """Case 66: ten tasks, four a step: five steps are two whole passes."""
    *steps, _ = await trained(training_tasks(file_of(tmp_path, 10), seed=1), steps=5, groups_per_step=4)
    of_all = sorted(task for step in steps for task in step)
    assert of_all == sorted([f"t{row}" for row in range(10)] + [f"t{row}@1" for row in range(10)])


async def test_fewer_tasks_than_a_step_takes_are_taken_more_than_once(tmp_path: Path) -> None:
    """Case 66: three tasks, four a step."""
    [step, _] = await trained(training_tasks(file_of(tmp_path, 3), seed=1), steps=1, groups_per_step=4)
    assert len(step) == 4
    assert {task.partition("@")[0] for task in step} == {"t0", "t1", "t2"}


@pytest.mark.parametrize("source", ["file", "environment"])
async def test_the_seed_decides_which_tasks_are_trained_when(tmp_path: Path, source: str) -> None:
    """Case 77: twice with one seed, once with another."""
    environment = file_of(tmp_path, 10) if source == "file" else EnvironmentConfig(id="agentrl/Calculator-v0")

    async def run(seed: int) -> list[list[str]]:
        return await trained(training_tasks(environment, seed), steps=3, groups_per_step=2)

    first, again, other = await run(7), await run(7), await run(8)
    assert first == again
    assert first != other
