"""Scores finished episodes: asks every service, combines the parts, and says when failures are too many."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence

from agentrl.errors import RewardError
from agentrl.reward.client import RewardClient
from agentrl.reward.compose import Reward, compose
from agentrl.reward.config import RewardConfig, ServiceConfig
from agentrl.reward.protocol import Score, item_of
from agentrl.types import Episode

WINDOW = 256
"""Scores of a service over which its share of failures is taken."""

MIN_SCORES = 32
"""Fewer than these are too few to tell an outage from bad luck."""


class FailureShare:
    """The share of failures among the last `WINDOW` scores of one service."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._failed: deque[bool] = deque(maxlen=WINDOW)

    def add(self, failed: bool) -> None:
        self._failed.append(failed)

    @property
    def share(self) -> float:
        return sum(self._failed) / len(self._failed) if self._failed else 0.0

    @property
    def too_high(self) -> bool:
        return len(self._failed) >= MIN_SCORES and self.share > self._limit


class Scorer:
    """Belongs to one event loop. Raises ConfigError at construction when a service's token is not set."""

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._clients = [RewardClient(service) for service in config.services]
        self._weights = {"env": config.env_weight} | {service.name: service.weight for service in config.services}
        self._shares = {service.name: FailureShare(config.max_failure_share) for service in config.services}
        self.failures: Counter[str] = Counter()
        """Failed scores by service, since the start."""

    async def check(self) -> None:
        """Raises RewardError naming the first service that is not there. A run calls it before it starts anything."""
        await asyncio.gather(*(client.check() for client in self._clients if client.service.protocol == "agentrl"))

    async def score(self, episodes: Sequence[Episode]) -> dict[str, Reward]:
        """The reward and its components, by session id, of the episodes that the policy ended.

        The others failed: they are not asked for, and what is stored of them already has no reward.
        Raises RewardError: with `on_error = "fail"` for the first failure, else when a service fails too often.
        """
        ended = [episode for episode in episodes if episode.stop_reason.by_policy]
        if not ended:
            return {}
        items = [item_of(episode) for episode in ended]
        answers = await asyncio.gather(*(client.score(items) for client in self._clients))
        for service, answer in zip(self._config.services, answers, strict=True):
            self._count(service, answer.values())
        return {episode.session_id: self._compose(episode, answers) for episode in ended}

    def _compose(self, episode: Episode, answers: Sequence[Mapping[str, Score]]) -> Reward:
        services = zip(self._config.services, answers, strict=True)
        scores = {service.name: answer[episode.session_id] for service, answer in services}
        return compose(episode.reward, scores, self._weights)

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))

    def _count(self, service: ServiceConfig, scores: Iterable[Score]) -> None:
        share = self._shares[service.name]
        for score in scores:
            share.add(score.error is not None)
            if score.error is None:
                continue
            self.failures[service.name] += 1
            if self._config.on_error == "fail" and service.weight != 0:
                raise RewardError(f"{score.error}; the run ends because reward.on_error is 'fail'")
        if share.too_high and service.weight != 0:
            raise RewardError(
                f"reward service {service.name} failed for {share.share:.0%} of its last scores, more than "
                f"reward.max_failure_share = {self._config.max_failure_share:.0%}; look at its log"
            )
