"""Dynamic sampling: groups without signal are replaced within a bound, and the staleness gate never loses count."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import TwinEngines, TwinRollouts, TwinScorer, in_one_thread

from agentrl.store.memory import MemoryStore
from agentrl.train.batch import PreparedBatch, prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.refill import Refill
from agentrl.types import Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


class World:
    """Two groups of two a step over twins. `mixed` says of which task's group the rewards differ."""

    def __init__(self, mixed: Callable[[int], bool], *, steps: int = 2, max_lag: int = 1, max_refills: int = 4) -> None:
        in_one_thread()
        self.steps = steps
        self.store = MemoryStore()
        self.engines = TwinEngines(self.store)
        self.staleness = StalenessConfig(max_lag=max_lag)
        self.algorithm = AlgorithmConfig(zero_variance="refill", max_refills=max_refills)
        self.producer = GroupProducer(
            tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count()),
            rollouts=TwinRollouts(
                self.store, self.engines, reward=lambda task, index: float(index % 2) if mixed(task.seed) else 1.0
            ),
            scorer=TwinScorer(),
            store=self.store,
            loop=LoopConfig(steps=steps, groups_per_step=2, max_failed_groups=1),
            staleness=self.staleness,
            group_size=2,
            refill=Refill.of(self.algorithm, group_advantages),
        )
        self.batches: list[PreparedBatch] = []
        self.refilled: list[int] = []  # in each step
        self.no_signal: list[int] = []  # groups dropped for it by the end of each step

    async def run(self) -> None:
        """What the loop does, without trainer and weights."""
        async with self.producer:
            for version in range(self.steps):
                before = self.producer.refilled_groups
                groups = await self.producer.take(2)
                self.batches.append(
                    prepare_batch(
                        groups, version=version, staleness=self.staleness, algorithm=self.algorithm,
                        estimate=group_advantages,
                    )
                )  # fmt: skip
                self.engines.version = self.producer.version = version + 1
                self.producer.settle(self.batches[-1].settlements, step=version + 1)
                self.refilled.append(self.producer.refilled_groups - before)
                self.no_signal.append(self.producer.dropped_groups["no_signal"])

    def trained_tasks(self) -> list[list[str]]:
        """Of each step. (Which of two groups is whole first is the event loop's affair.)"""
        return [sorted({row.session_id.split("-")[1] for row in prepared.batch.rows}) for prepared in self.batches]


async def test_a_group_without_signal_is_replaced_and_its_books_are_closed() -> None:
    """Tasks 0 and 2 are solved every time: the first step trains 1 and 3."""
    world = World(lambda number: number not in (0, 2), steps=1, max_lag=0)
    await world.run()
    assert world.trained_tasks() == [["t1", "t3"]]
    assert (world.refilled, world.no_signal) == ([2], [2])
    outcomes = {record.task.id: record.outcome for record in world.store.groups()}
    assert [outcomes[f"t{number}"] for number in range(4)] == ["no_signal", "trained", "no_signal", "trained"]
    of_t0 = [one for one in world.store.settlements() if one.session_id.startswith("000000")]
    assert [(one.outcome, one.tokens) for one in of_t0] == [("no_signal", 0)] * 2


async def test_beyond_the_bound_the_step_goes_on_with_what_there_is() -> None:
    """Tasks 0 to 3 are flat; three are replaced, the fourth takes a place and leaves no row."""
    world = World(lambda number: number > 3, steps=1, max_lag=0, max_refills=3)
    await world.run()
    assert world.trained_tasks() == [["t4"]]
    assert world.refilled == [3]
    assert world.batches[0].no_signal_groups == 1
    assert world.batches[0].dropped_tokens == {"no_signal": 6}  # 2 episodes of 3 tokens
    assert world.no_signal == [4]


async def test_a_policy_that_solves_everything_is_no_hang_and_trains_nothing() -> None:
    world = World(lambda number: False, steps=3, max_refills=4)
    await world.run()
    assert world.trained_tasks() == [[], [], []]
    assert (world.refilled, world.no_signal) == ([4, 4, 4], [6, 12, 18])


async def test_groups_without_signal_are_no_failures() -> None:
    """`max_failed_groups` is 1, and five in a row have no signal."""
    world = World(lambda number: number >= 5, steps=1, max_lag=0, max_refills=8)
    await world.run()
    assert world.trained_tasks() == [["t5", "t6"]]


def test_without_refill_nothing_is_replaced() -> None:
    assert Refill.of(AlgorithmConfig(zero_variance="drop"), group_advantages) is None


@pytest.mark.parametrize("max_lag", [0, 1, 3])
@given(flat=st.lists(st.booleans(), min_size=60, max_size=60), max_refills=st.integers(1, 6))
@settings(max_examples=15, deadline=None)
async def test_however_many_are_replaced_no_token_is_staler_than_the_bound_and_every_group_is_closed_once(
    max_lag: int, flat: list[bool], max_refills: int
) -> None:
    world = World(lambda number: not flat[number % 60], steps=4, max_lag=max_lag, max_refills=max_refills)
    await world.run()
    assert max((lag for prepared in world.batches for lag in prepared.lags), default=0) <= max_lag
    groups = list(world.store.groups())
    assert all(record.outcome is not None for record in groups)
    assert set(Counter(one.session_id for one in world.store.settlements()).values()) == {1}
    for step, refilled in enumerate(world.refilled, start=1):
        of_step = [one for one in groups if one.step == step and one.outcome in ("trained", "no_signal")]
        assert len(of_step) == 2 + refilled
        assert refilled <= max_refills
