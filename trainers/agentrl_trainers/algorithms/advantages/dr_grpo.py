"""Dr. GRPO's advantage: the group's mean is the baseline, and nothing is divided by the group's spread.

    A_i = r_i - mean(r)                   over the episodes that have a reward

Dividing by the spread gives tasks that are nearly always, or nearly never, solved a larger say than the rest. Its other
half, no division by a row's length, is `trainer.aggregation.name = "constant"`. Source: Liu et al., "Understanding
R1-Zero-Like Training", arXiv:2503.20783.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl_trainers.algorithms.advantages.known import Rewards, are_equal, of_known


def centred_advantages(rewards_G: Sequence[float | None]) -> list[float | None]:
    """Advantages `[G]` of one group, aligned with `rewards_G`.

    None (no reward) stays None and shifts nobody else. Equal rewards and a lone reward give 0.0. Raises TrainerError
    for a reward that is not finite.
    """
    return of_known(rewards_G, centred)


def centred(rewards_K: Rewards) -> Rewards:
    return 0.0 * rewards_K if are_equal(rewards_K) else rewards_K - rewards_K.mean()
