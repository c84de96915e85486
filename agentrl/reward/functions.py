"""Rewards by Python functions of the user's, in worker processes: they may block, spin or crash without harm."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.to_process
import msgspec
from anyio import CapacityLimiter

from agentrl.loading import load
from agentrl.reward.config import FunctionConfig
from agentrl.reward.protocol import Item, Score, fault_of, outside_of, summed
from agentrl.reward.stats import ServiceStats

Found = float | int | None | dict[str, Any] | Score
"""What a function gives for an item: the reward, None where it has none, a dict of components (whose `reward` is the
reward, or else their sum), or a whole Score."""


class RewardFunction:
    """One function. Belongs to one event loop. A failure is the `error` of its items, never an exception."""

    def __init__(self, config: FunctionConfig) -> None:
        """Raises ConfigError when there is no such function: it is looked for here, in this process."""
        load(config.function, "reward function")
        self.config = config
        self.stats = ServiceStats()
        self._limiter: CapacityLimiter | None = None  # made inside the event loop

    async def score(self, items: Sequence[Item], *, together: bool = False) -> dict[str, Score]:
        """By id. `together`: the function is given the list of items and gives a list."""
        if together:
            scores = await self._call(items, list(items))
        else:
            parts = await asyncio.gather(*(self._call([item], item) for item in items))
            scores = [score for part in parts for score in part]
        self.stats.failures += sum(score.error is not None for score in scores)
        return {score.id: score for score in scores}

    async def _call(self, items: Sequence[Item], given: Item | list[Item]) -> list[Score]:
        config = self.config
        self._limiter = self._limiter or CapacityLimiter(config.workers)
        started = anyio.current_time()
        try:
            async with self._limiter:
                with anyio.move_on_after(config.timeout_s) as limit:
                    # Cancelling ends the worker process with whatever it does.
                    found = await anyio.to_process.run_sync(call, config.function, given, cancellable=True)
            if limit.cancelled_caught:
                return self._failed(items, f"took longer than {config.timeout_s:g} s")
            results = found if isinstance(given, list) else [found]
            if len(results) != len(items):
                raise ValueError(f"it gave {len(results)} rewards for {len(items)} items; give one for each")
            scores = [self._score(item, result) for item, result in zip(items, results, strict=True)]
        except Exception as error:  # the user's own code, or its process
            return self._failed(items, f"{type(error).__name__}: {error}")
        self.stats.answered(len(items), anyio.current_time() - started)
        return scores

    def _score(self, item: Item, found: Found) -> Score:
        try:
            return as_score(item, found, self.config.bounds)
        except (ValueError, TypeError) as error:
            return self._failed([item], str(error))[0]

    def _failed(self, items: Sequence[Item], why: str) -> list[Score]:
        return [Score(id=item.id, error=f"reward function {self.config.name}: {why}") for item in items]


def call(function: str, given: Any) -> Any:
    """In a worker process."""
    found = load(function, "reward function")(given)
    return asyncio.run(found) if inspect.iscoroutine(found) else found


def as_score(item: Item, found: Found, bounds: tuple[float, float] | None) -> Score:
    """The item's, whatever id a whole Score has. Raises ValueError for what is no reward."""
    if isinstance(found, Score):
        score = msgspec.structs.replace(found, id=item.id)
        if (why := fault_of(item, score)) is not None:
            raise ValueError(why)
        score = summed(score)
    elif isinstance(found, dict):
        components = {str(name): _number(value) for name, value in found.items() if name != "reward"}
        known = [value for value in components.values() if value is not None]
        total = math.fsum(known) if known and len(known) == len(components) else None
        score = Score(
            id=item.id, reward=_number(found["reward"]) if "reward" in found else total, components=components
        )
    else:
        score = Score(id=item.id, reward=_number(found))
    if (why := outside_of(bounds, score.reward)) is not None:
        raise ValueError(why)
    return score


def _number(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str | bytes):
        raise ValueError(f"it gave {value!r:.100}; give a number, or None where there is no reward")
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"it gave {number}; give a finite number, or None where there is no reward")
    return number
