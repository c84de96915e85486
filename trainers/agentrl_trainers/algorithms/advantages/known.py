"""What the estimators of one group share: rewards that are missing, equal, or no numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentrl.errors import TrainerError

EQUAL_WITHIN = 1e-6
"""Rewards closer than this, relative to their size, are equal: the std of eight 0.7 is 6e-8 in float32, not 0."""

Rewards = np.ndarray[Any, np.dtype[np.float64]]


def of_known(rewards_G: Sequence[float | None], estimate: Callable[[Rewards], Rewards]) -> list[float | None]:
    """`estimate` of the rewards that are there `[K]`, put back in place; None stays None and shifts nobody.

    Raises TrainerError for a reward that is not finite.
    """
    for index, reward in enumerate(rewards_G):
        if reward is not None and not math.isfinite(reward):
            raise TrainerError(f"reward {index} of a group of {len(rewards_G)} is {reward}; a missing reward is None")
    known_K = np.array([reward for reward in rewards_G if reward is not None], dtype=np.float64)
    found = iter(estimate(known_K).tolist() if known_K.size else [])
    return [None if reward is None else next(found) for reward in rewards_G]


def are_equal(values: Rewards) -> bool:
    """Whether they differ by rounding at most; a lone one is equal to itself."""
    return bool(values.size == 0 or np.ptp(values) <= EQUAL_WITHIN * max(1.0, float(np.abs(values).max())))
