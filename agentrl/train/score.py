"""Adds the rewards of services to finished groups, and writes the result beside the trajectory (invariant 7)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from agentrl.reward.compose import Reward
from agentrl.reward.config import RewardConfig
from agentrl.reward.scorer import Scorer
from agentrl.store.base import TrajectoryStore
from agentrl.types import Group


class GroupScorer:
    """The loop's `agentrl.train.ports.Scorer`. Without services there is nothing to add to what the store has."""

    def __init__(self, config: RewardConfig, store: TrajectoryStore) -> None:
        self._scorer = Scorer(config)
        self._as_it_is = not config.services and config.env_weight == 1.0
        self._store = store

    async def score(self, group: Group) -> None:
        """Raises RewardError when the configuration says that failures end the run."""
        if self._as_it_is:
            return
        rewards = await self._scorer.score(group.episodes)
        await asyncio.to_thread(self._write, rewards)
        for episode in group.episodes:
            if (reward := rewards.get(episode.session_id)) is not None:
                episode.reward = reward.value

    async def close(self) -> None:
        await self._scorer.close()

    def _write(self, rewards: Mapping[str, Reward]) -> None:
        for session_id, reward in rewards.items():
            self._store.set_reward(session_id, reward.value, reward.components)
