"""GRPO's advantage: how much better an episode was than the others of its group.

    A_i = (r_i - mean(r)) / std(r)        std with ddof = 1, over the episodes that have a reward

Source: Shao et al., DeepSeekMath, arXiv:2402.03300, section 4.1.2 (outcome supervision). No epsilon is added to the
denominator: a group without spread carries no signal and gets exactly 0 instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from agentrl.errors import TrainerError

# Rewards closer than this, relative to their size, are equal: the std of eight 0.7 is 6e-8 in float32, not 0.
EQUAL_WITHIN = 1e-6


def group_advantages(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Advantages `[G]` of one group, aligned with `rewards_G`.

    None (no reward) stays None and shifts nobody else. Equal rewards and a lone reward give 0.0. Raises TrainerError
    for a reward that is not finite.
    """
    for index, reward in enumerate(rewards_G):
        if reward is not None and not math.isfinite(reward):
            raise TrainerError(f"reward {index} of a group of {len(rewards_G)} is {reward}; a missing reward is None")
    known = np.array([reward for reward in rewards_G if reward is not None], dtype=np.float64)
    if known.size == 0:
        return [None] * len(rewards_G)
    if np.ptp(known) <= EQUAL_WITHIN * max(1.0, float(np.abs(known).max())):
        return [None if reward is None else 0.0 for reward in rewards_G]
    mean, std = float(known.mean()), float(known.std(ddof=1))
    return [None if reward is None else (reward - mean) / std for reward in rewards_G]
