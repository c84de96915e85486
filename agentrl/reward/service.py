"""What a reward service is made of; `agentrl.reward.app` gives it HTTP, batching, health and metrics."""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from agentrl.errors import RewardError
from agentrl.reward.protocol import Item, Score

GATEWAY_URL, GATEWAY_KEY = "AGENTRL_GATEWAY_URL", "AGENTRL_GATEWAY_KEY"
"""What a service that a run starts finds in its environment: the run's gateway, and a key that opens sessions there."""


class RewardService(Protocol):
    """Belongs to one event loop."""

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        """One score an item, in any order. What cannot be scored has `reward=None` and says why in `error`."""
        ...

    async def close(self) -> None: ...


class CannotScore(RewardError):
    """This item cannot be judged, and trying again would not help: its reward is missing, and the message says why."""


class ItemService(ABC):
    """A service that looks at one item at a time. Subclasses give `score_item`, which may block: it runs in threads."""

    threads = 8

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="agentrl-reward")

    @abstractmethod
    def score_item(self, item: Item) -> Score | float:
        """A score, or the bare reward. Raises CannotScore; any other exception is this item's error too."""

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        loop = asyncio.get_running_loop()
        return await asyncio.gather(*(loop.run_in_executor(self._pool, self._guarded, item) for item in items))

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, item: Item) -> Score:
        try:
            return as_score(item, self.score_item(item))
        except Exception as error:  # one item's, never its batch's
            return failed(item, error)


def as_score(item: Item, found: Score | float) -> Score:
    """Raises CannotScore for a number that is not finite."""
    score = found if isinstance(found, Score) else Score(id=item.id, reward=float(found))
    if score.reward is not None and not math.isfinite(score.reward):
        raise CannotScore(f"the reward is {score.reward}, which is not a finite number")
    return score


def failed(item: Item, error: BaseException) -> Score:
    told = str(error) if isinstance(error, RewardError) else f"{type(error).__name__}: {error}"
    return Score(id=item.id, error=told)
