"""Rewards of single messages, and of groups, on their way from a service into the store and to the trainer."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from reward_server import Behaviour, answering, serving
from twins import TwinEngines, TwinRollouts

from agentrl.reward.config import RewardConfig, ServiceConfig
from agentrl.store.sql import SqlStore
from agentrl.train.batch import ScoredGroup
from agentrl.train.config import LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.score import GroupScorer
from agentrl.types import Group, Mode, Task

ANSWER = {"role": "assistant", "content": "x"}


class TalkingRollouts(TwinRollouts):
    """Their episodes have so many answers of the policy, each trajectory one call."""

    answers = 1

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode, **more: Any) -> Group:
        group = await super().run_group(group_id, task, size=size, version=version, mode=mode, **more)
        for episode in group.episodes:
            episode.messages = [{"role": "user", "content": "q"}, *([ANSWER] * self.answers)]
        return group


async def scored_by(
    behaviour: Behaviour, directory: Path, *, answers: int = 1, **settings: Any
) -> tuple[ScoredGroup, SqlStore]:
    """A group of four as the trainer gets it, and the store."""
    store = SqlStore.at(directory / "trajectories.db")
    async with serving(behaviour) as server:
        service = ServiceConfig(name="judge", url=server.url, **settings)
        scorer = GroupScorer(RewardConfig(services=(service,)), store)
        rollouts = TalkingRollouts(store, TwinEngines(store))
        rollouts.answers = answers
        producer = GroupProducer(
            tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count()),
            rollouts=rollouts,
            scorer=scorer,
            store=store,
            loop=LoopConfig(steps=1, groups_per_step=1),
            staleness=StalenessConfig(max_lag=0),
            group_size=4,
        )
        async with producer:
            (found,) = await producer.take(1)
        await scorer.close()
    return found, store


def numbered(calls: Callable[[int], list[float | None]]) -> Behaviour:
    """Each episode's calls, by its number in the group."""
    return answering(lambda item: {"reward": 1.0, "calls": calls(int(item["id"][-1]))})


async def test_rewards_of_messages_reach_the_calls_in_the_store_and_the_trainer(tmp_path: Path) -> None:
    """Weight 2: each is doubled, as the reward of the whole is (1 or 0 of the environment, and 2 · 1)."""
    scored, store = await scored_by(numbered(lambda number: [number / 8]), tmp_path, weight=2.0)
    assert [one.calls[0].reward for one in scored.trajectories] == [0.0, 0.25, 0.5, 0.75]
    assert [one.reward for one in scored.trajectories] == [2.0, 3.0, 2.0, 3.0]
    stored = list(store.iterate(mode="train"))
    assert [one.calls[0].reward for one in stored] == [0.0, 0.25, 0.5, 0.75]
    store.close()


async def test_a_message_without_a_reward_leaves_its_call_without_one(tmp_path: Path) -> None:
    scored, store = await scored_by(numbered(lambda number: [None]), tmp_path)
    assert [one.calls[0].reward for one in scored.trajectories] == [None] * 4
    assert [one.reward for one in scored.trajectories] == [1.0, 2.0, 1.0, 2.0]
    store.close()


async def test_rewards_of_messages_that_are_no_calls_are_left_out_and_the_episodes_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent program may ask the policy less often than it answers."""
    with caplog.at_level(logging.WARNING, "agentrl.train.score"):
        scored, store = await scored_by(numbered(lambda number: [0.5, 0.5]), tmp_path, answers=2)
    assert [one.calls[0].reward for one in scored.trajectories] == [None] * 4
    assert [one.reward for one in scored.trajectories] == [1.0, 2.0, 1.0, 2.0]
    assert "2 rewards for the 1 calls" in caplog.text
    store.close()


async def test_the_ranks_of_a_group_reach_the_store(tmp_path: Path) -> None:
    """The service sees the group's four episodes at once, in batches of two otherwise."""

    async def ranks(body: dict[str, Any]) -> web.Response:
        in_order = sorted(item["id"] for item in body["items"])
        share = 1 / (len(in_order) - 1)
        return web.json_response(
            {"results": [{"id": one, "reward": rank * share} for rank, one in reversed(list(enumerate(in_order)))]}
        )

    _, store = await scored_by(ranks, tmp_path, scope="group", batch_size=2)
    stored = {one.session_id: one.components for one in store.iterate(mode="train")}
    assert [stored[name]["judge"] for name in sorted(stored)] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert [stored[name]["env"] for name in sorted(stored)] == [0.0, 1.0, 0.0, 1.0]
    store.close()
