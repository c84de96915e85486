"""Adds the rewards of services and functions to finished groups, beside the trajectory in the store (invariant 7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from agentrl.errors import StoreError
from agentrl.reward.client import always
from agentrl.reward.compose import Reward
from agentrl.reward.config import RewardConfig
from agentrl.reward.scorer import Scorer
from agentrl.store.base import TrajectoryStore
from agentrl.types import Group

logger = logging.getLogger(__name__)


class GroupScorer:
    """The loop's `agentrl.train.ports.Scorer`. Where the environment alone decides, the store has its reward."""

    def __init__(self, config: RewardConfig, store: TrajectoryStore) -> None:
        self._config = config
        self._scorer = Scorer(config)
        self._store = store

    async def check(self) -> None:
        """Raises RewardError naming the first service that is not there."""
        await self._scorer.check()

    async def score(self, group: Group, *, useful: Callable[[], bool] = always) -> None:
        """Raises RewardError when the configuration says that failures end the run."""
        if group.scored_together:
            await asyncio.to_thread(self._forget_steps, group)
        if self._config.is_the_environments:
            return
        tokens = await asyncio.to_thread(self._sampled, group) if self._config.shapes_length else None
        rewards = await self._scorer.score(group.episodes, group_id=group.group_id, tokens=tokens, useful=useful)
        await asyncio.to_thread(self._write, rewards)
        for episode in group.episodes:
            if (reward := rewards.get(episode.session_id)) is not None:
                episode.reward = reward.value

    def stats(self) -> dict[str, dict[str, float]]:
        return self._scorer.stats()

    async def close(self) -> None:
        await self._scorer.close()

    def _sampled(self, group: Group) -> dict[str, int]:
        """Tokens sampled by session: what the policy wrote, without what it read."""
        sessions = [episode.session_id for episode in group.episodes if episode.stop_reason.by_policy]
        stored = (self._store.get(session_id) for session_id in sessions)
        return {one.session_id: sum(len(call.token_ids) for call in one.calls) for one in stored}

    def _write(self, rewards: Mapping[str, Reward]) -> None:
        for session_id, reward in rewards.items():
            self._store.set_reward(session_id, reward.value, reward.components)
            calls = reward.calls if reward.calls is not None else self._steps(session_id)
            if calls is None:
                continue
            try:
                self._store.set_call_rewards(session_id, calls)
            except StoreError as error:  # an agent program's messages need not be its calls
                logger.warning("the rewards of single messages are not kept: %s", error)

    def _forget_steps(self, group: Group) -> None:
        """What steps earned is no part of a reward that `score_group` gave in its place."""
        for session_id in (episode.session_id for episode in group.episodes if episode.stop_reason.by_policy):
            calls = self._store.get(session_id).calls
            if any(call.reward for call in calls):
                self._store.set_call_rewards(session_id, [None] * len(calls))

    def _steps(self, session_id: str) -> list[float | None] | None:
        """What the environment gave to single calls, weighted as its reward is; None where that changes nothing."""
        weight = self._config.env_weight
        if weight == 1.0:
            return None
        given = [call.reward for call in self._store.get(session_id).calls]
        return [None if reward is None else weight * reward for reward in given] if any(given) else None
