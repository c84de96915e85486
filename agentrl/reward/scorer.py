"""Scores finished episodes: asks everybody who scores, combines the parts, and says when failures are too many."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from agentrl.errors import RewardError
from agentrl.reward.client import RewardClient, always
from agentrl.reward.compose import Reward, compose
from agentrl.reward.config import PartConfig, RewardConfig
from agentrl.reward.functions import RewardFunction
from agentrl.reward.protocol import Item, Score, item_of
from agentrl.types import Episode

WINDOW = 256
"""Scores of a part over which its share of failures is taken."""

MIN_SCORES = 32
"""Fewer than these are too few to tell an outage from bad luck."""


class FailureShare:
    """The share of failures among the last `WINDOW` scores of one part."""

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
    """Belongs to one event loop. Raises ConfigError at construction for a token that is not set or a function that
    is not there.
    """

    def __init__(self, config: RewardConfig) -> None:
        self._config = config
        self._clients = [
            RewardClient(service, policy=config.on_error, give_up_s=config.give_up_s) for service in config.services
        ]
        self._functions = [RewardFunction(function) for function in config.functions]
        self._shares = {part.name: FailureShare(config.max_failure_share) for part in config.parts}

    @property
    def failures(self) -> dict[str, int]:
        """Failed scores of the parts that have any, since the start."""
        return {name: int(found["failures"]) for name, found in self.stats().items() if found["failures"]}

    async def check(self) -> None:
        """Raises RewardError naming the first service that is not there. A run calls it before it starts anything."""
        await asyncio.gather(*(client.check() for client in self._clients))

    async def score(
        self,
        episodes: Sequence[Episode],
        *,
        group_id: str = "",
        tokens: Mapping[str, int] | None = None,
        useful: Callable[[], bool] = always,
    ) -> dict[str, Reward]:
        """The reward and its components, by session id, of the episodes that the policy ended.

        The others failed: they are not asked for, and what is stored of them already has no reward. `tokens` are how
        many were sampled, by session id, where length is shaped. Raises RewardError: with `on_error = "fail"` for the
        first failure, else when a part fails too often.
        """
        ended = [episode for episode in episodes if episode.stop_reason.by_policy]
        if not ended:
            return {}
        items = [item_of(episode, group_id) for episode in ended]
        answers = await asyncio.gather(*self._asked(items, useful))
        for part, answer in zip(self._config.parts, answers, strict=True):
            self._count(part, answer.values())
        named = list(zip((part.name for part in self._config.parts), answers, strict=True))
        rewards = {}
        for episode in ended:
            scores = {name: answer[episode.session_id] for name, answer in named}
            sampled = (tokens or {}).get(episode.session_id)
            rewards[episode.session_id] = compose(episode.reward, scores, self._config, tokens=sampled)
        return rewards

    def stats(self) -> dict[str, dict[str, float]]:
        """What each part has done and cost so far, by its name."""
        by_part: dict[str, dict[str, float]] = {}
        for client in self._clients:
            by_part[client.service.name] = client.metrics()
        for function in self._functions:
            by_part[function.config.name] = function.stats.as_metrics()
        return by_part

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self._clients))

    def _asked(self, items: Sequence[Item], useful: Callable[[], bool]) -> Iterable[asyncio.Future[dict[str, Score]]]:
        """In the order of the configuration's parts."""
        for client in self._clients:
            together = client.service.scope == "group"
            yield asyncio.ensure_future(client.score(items, together=together, useful=useful))
        for function in self._functions:
            yield asyncio.ensure_future(function.score(items, together=function.config.scope == "group"))

    def _count(self, part: PartConfig, scores: Iterable[Score]) -> None:
        share = self._shares[part.name]
        for score in scores:
            share.add(score.error is not None)
            if score.error is None:
                continue
            if self._config.on_error == "fail" and self._config.needs(part):
                raise RewardError(f"{score.error}; the run ends because reward.on_error is 'fail'")
        if share.too_high and self._config.needs(part):
            raise RewardError(
                f"reward service {part.name} failed for {share.share:.0%} of its last scores, more than "
                f"reward.max_failure_share = {self._config.max_failure_share:.0%}; look at its log"
            )
