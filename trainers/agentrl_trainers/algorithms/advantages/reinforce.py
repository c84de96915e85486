"""REINFORCE without a baseline: the advantage is the reward.

    A_i = r_i

Unbiased, and of the largest variance: with rewards that are never negative, everything that was sampled is pushed up.
Source: Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_trainers.algorithms.advantages.known import of_known


def rewards_alone(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Advantages `[G]`, the rewards themselves; None (no reward) stays None.

    Raises TrainerError for a reward that is not finite.
    """
    return of_known(rewards_G, lambda rewards_K: rewards_K)
