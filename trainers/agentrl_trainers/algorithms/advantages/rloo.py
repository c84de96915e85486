"""RLOO's advantage: the baseline of an episode is the mean of the others, without itself.

    A_i = r_i - mean(r_j, j != i)         = K / (K - 1) * (r_i - mean(r)), over the K episodes that have a reward

So the baseline does not depend on what it is subtracted from, and the gradient is unbiased. Sources: Kool et al., "Buy
4 REINFORCE samples, get a baseline for free!", 2019; Ahmadian et al., "Back to Basics", arXiv:2402.14740.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_trainers.algorithms.advantages.known import Rewards, are_equal, of_known


def leave_one_out(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Advantages `[G]` of one group, aligned with `rewards_G`.

    None (no reward) stays None and shifts nobody else. Equal rewards and a lone reward, which has no others, give 0.0.
    Raises TrainerError for a reward that is not finite.
    """
    return of_known(rewards_G, _less_the_others)


def _less_the_others(rewards_K: Rewards) -> Rewards:
    if are_equal(rewards_K):
        return 0.0 * rewards_K
    return rewards_K - (rewards_K.sum() - rewards_K) / (rewards_K.size - 1)
