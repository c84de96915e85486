"""What a step says of its rewards: each trajectory once, what is missing left out and counted."""

from __future__ import annotations

import pytest
from call_builders import call, chain, trajectory_of
from twins import TwinEngines, TwinRollouts, TwinScorer

from agentrl.observe.records import StepRecord
from agentrl.store.memory import MemoryStore
from agentrl.train.batch import ScoredGroup, prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.report import describe_step
from agentrl.types import Group, Task, Trajectory
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


def record_of(*trajectories: Trajectory, **algorithm: str) -> StepRecord:
    groups = [ScoredGroup(Group(group_id="g", task=Task(id="t")), list(trajectories))]
    store, staleness = MemoryStore(), StalenessConfig()
    producer = GroupProducer(
        tasks=iter(()), rollouts=TwinRollouts(store, TwinEngines(store)), scorer=TwinScorer(), store=store,
        loop=LoopConfig(), staleness=staleness, group_size=3,
    )  # fmt: skip
    prepared = prepare_batch(
        groups,
        version=0,
        staleness=staleness,
        algorithm=AlgorithmConfig(**algorithm),  # type: ignore[arg-type]
        estimate=group_advantages,
    )
    return describe_step(prepared, metrics={}, swap={}, producer=producer, success_reward=1.0)


def test_a_missing_reward_is_in_no_mean_and_counted() -> None:
    """Case 81: of [1, None, 0] the mean is 0.5 over two."""
    record = record_of(*(chain([None], reward, session_id=str(reward)) for reward in (1.0, None, 0.0)))
    assert (record.reward, record.success, record.trajectories, record.missing_rewards) == (0.5, 0.5, 3, 1)
    assert (record.trained_tokens, record.sampled_tokens) == (4, 6)


def test_an_episode_of_many_rows_counts_once_and_one_that_is_masked_counts_too() -> None:
    """Rewards 1 of three rows, 0.5 and 0 of one row each, the last masked for its length: the mean is 0.5."""
    branched = trajectory_of([call([1, leaf], [10 + leaf]) for leaf in range(3)], 1.0, session_id="a")
    plain = chain([None], 0.5, session_id="b")
    cut = chain([None], 0.0, session_id="c", stop_reason="max_tokens")
    record = record_of(branched, plain, cut, overlong="mask")
    assert record.reward == pytest.approx(0.5)
    assert record.rows == 4
    assert record.dropped_tokens == {"overlong_max_tokens": 2}
