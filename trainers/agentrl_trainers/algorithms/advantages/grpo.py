"""GRPO's advantage: how much better an episode was than the others of its group.

    A_i = (r_i - mean(r)) / std(r)        std with ddof = 1, over the episodes that have a reward

Source: Shao et al., DeepSeekMath, arXiv:2402.03300, section 4.1.2 (outcome supervision). No epsilon is added to the
denominator: a group without spread carries no signal and gets exactly 0 instead.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_trainers.algorithms.advantages.known import EQUAL_WITHIN, Rewards, are_equal, of_known

__all__ = ["EQUAL_WITHIN", "group_advantages"]


def group_advantages(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Advantages `[G]` of one group, aligned with `rewards_G`.

    None (no reward) stays None and shifts nobody else. Equal rewards and a lone reward give 0.0. Raises TrainerError
    for a reward that is not finite.
    """
    return of_known(rewards_G, _normalised)


def _normalised(rewards_K: Rewards) -> Rewards:
    if are_equal(rewards_K):
        return 0.0 * rewards_K
    return (rewards_K - rewards_K.mean()) / rewards_K.std(ddof=1)
