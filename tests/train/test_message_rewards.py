"""Rewards of single messages and steps, all the way to the tokens that a trainer is given."""

from __future__ import annotations

from typing import Any

import pytest
from call_builders import chain
from reward_server import answering, serving
from twins import TwinScorer

from agentrl.reward.config import RewardConfig, ServiceConfig
from agentrl.store.memory import MemoryStore
from agentrl.train.batch import prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.score import GroupScorer
from agentrl.types import Batch, Episode, Group, Mode, StopReason, Task
from agentrl_trainers.algorithms.advantages.leave_out_returns import leave_out_returns

TASK = Task(id="t", env_id="e")
STEPS = [[0.5, 0.5], [0.0, 0.0]]  # what the environment gave to the two calls of each episode


class TwoTurns:
    """Episodes of two calls; the environment's reward is the sum over its steps."""

    def __init__(self, store: MemoryStore, together: list[float] | None) -> None:
        self._store = store
        self._together = together  # what `score_group` says of them

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode, **more: Any) -> Group:
        group = Group(group_id=group_id, task=task, admitted_at_version=version)
        talk = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
        for index, steps in enumerate(STEPS):
            one = chain(steps, sum(steps), session_id=f"{group_id}-{index}")
            one.metadata, one.task = {"group_id": group_id}, task
            self._store.save(one)
            group.episodes.append(
                Episode(
                    session_id=one.session_id, task=task, stop_reason=StopReason.DONE, reward=one.reward, messages=talk
                )
            )
        if self._together is not None:
            group.scored_together = True
            for episode, reward in zip(group.episodes, self._together, strict=True):
                episode.reward = reward
        return group


async def batch_of(store: MemoryStore, scorer: Any, *, together: list[float] | None = None) -> Batch:
    """One step's batch of one group, with turn-level advantages."""
    staleness = StalenessConfig(max_lag=0)
    producer = GroupProducer(
        tasks=iter([TASK]), rollouts=TwoTurns(store, together), scorer=scorer, store=store,
        loop=LoopConfig(steps=1, groups_per_step=1), staleness=staleness, group_size=2,
    )  # fmt: skip
    async with producer:
        groups = await producer.take(1)
    return prepare_batch(
        groups, version=0, staleness=staleness, algorithm=AlgorithmConfig(), estimate=leave_out_returns
    ).batch


def at_calls(values: list[float]) -> tuple[float, float]:
    """Of the rows' tokens [context, sampled, sampled, context, sampled, sampled]: the last of each call."""
    return values[2], values[5]


async def test_what_an_environments_steps_give_is_the_credit_of_their_calls() -> None:
    """Returns 1 and 0.5 of the first, 0 and 0 of the second: each is the other's baseline."""
    first, second = (await batch_of(MemoryStore(), TwinScorer())).rows
    assert at_calls(first.advantages) == (1.0, 0.5)
    assert at_calls(second.advantages) == (-1.0, -0.5)
    assert at_calls(first.rewards) == (0.5, 0.5)


async def test_a_services_rewards_of_messages_are_the_credit_of_their_calls() -> None:
    """Weight 2, messages of 0.75 and 0.25 or of 0 and 0.5, which add up to the service's reward; the environment's
    counts nothing. Returns: 2 and 0.5, against 1 and 1."""
    given = [[0.75, 0.25], [0.0, 0.5]]
    store = MemoryStore()
    async with serving(answering(lambda item: {"reward": None, "calls": given[int(item["id"][-1])]})) as server:
        service = ServiceConfig(name="judge", url=server.url, weight=2.0)
        scorer = GroupScorer(RewardConfig(services=(service,), env_weight=0.0), store)
        first, second = (await batch_of(store, scorer)).rows
        await scorer.close()
    assert at_calls(first.advantages) == (1.0, -0.5)
    assert at_calls(second.advantages) == (-1.0, 0.5)
    assert at_calls(first.rewards) == (1.5, 0.5)
    assert at_calls(second.rewards) == (0.0, 1.0)


@pytest.mark.parametrize("env_weight", [0.0, 0.5])
async def test_the_environments_steps_are_weighted_as_its_reward_is(env_weight: float) -> None:
    """The service scores whole episodes, 1 each: it is earned at the end, and beside it the weighted steps."""
    store = MemoryStore()
    async with serving(answering(lambda item: {"reward": 1.0})) as server:
        service = ServiceConfig(name="judge", url=server.url)
        scorer = GroupScorer(RewardConfig(services=(service,), env_weight=env_weight), store)
        first, second = (await batch_of(store, scorer)).rows
        await scorer.close()
    assert at_calls(first.rewards) == (0.5 * env_weight, 1.0 + 0.5 * env_weight)
    assert at_calls(first.advantages) == (env_weight, 0.5 * env_weight)
    assert at_calls(second.rewards) == (0.0, 1.0)


async def test_steps_earn_nothing_of_a_reward_that_the_group_was_given_together() -> None:
    """`score_group` said 0.25 and 0.75, so each call of an episode has the same advantage, 0.5 less or more."""
    store = MemoryStore()
    scorer = GroupScorer(RewardConfig(), store)
    first, second = (await batch_of(store, scorer, together=[0.25, 0.75])).rows
    await scorer.close()
    assert at_calls(first.rewards) == (0.0, 0.25)
    assert at_calls(first.advantages) == (-0.5, -0.5)
    assert at_calls(second.advantages) == (0.5, 0.5)
