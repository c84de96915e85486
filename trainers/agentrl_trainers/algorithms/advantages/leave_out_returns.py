"""Turn-level advantages: what a call's episode earned from that call on, less what its siblings earned from theirs on.

    G_i,c = r_i - sum(r_i,k, k < c)               return of call c: the episode's reward less what was earned before it
    A_i,c = G_i,c - mean(G_j,min(c, C_j - 1), j != i)

r_i,k is what of the reward r_i was earned at call k (an environment's step, a service's reward of a message); what
nobody ascribed to a call came at the end, and is in the return of every call. C_j is the number of calls of sibling j:
where it made fewer than c + 1, its last call stands in. The baseline of a call does not depend on what the episode did,
so the gradient is unbiased. Where no call has a reward of its own, this is RLOO, for every call.

Sources: returns to go instead of the whole reward, Williams 1992 and Sutton et al., "Policy gradient methods for
reinforcement learning with function approximation", 1999; the leave-one-out baseline, Ahmadian et al.,
arXiv:2402.14740; per turn of an agent, Zeng et al., arXiv:2505.11821 (there with GRPO's normalisation).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from agentrl.train.advantage import Attempt, CallAdvantages, step_estimator
from agentrl_trainers.algorithms.advantages.known import are_equal
from agentrl_trainers.algorithms.advantages.whitening import Groups


@step_estimator()
def leave_out_returns(groups: Groups) -> list[list[CallAdvantages]]:
    """Advantages of every call of every attempt of a step; None where the reward is missing, which shifts nobody.

    Equal returns and a lone attempt, which has no siblings, give 0.0.
    """
    return [_of_group(group) for group in groups]


def returns(attempt: Attempt) -> list[float]:
    """[C], of an attempt that has a reward: what it earned from each call on."""
    assert attempt.reward is not None
    earned_before_C = [0.0, *accumulate(attempt.call_rewards)][: attempt.num_calls]
    return [attempt.reward - earned for earned in earned_before_C]


def _of_group(group: Sequence[Attempt]) -> list[CallAdvantages]:
    returns_KC = [returns(attempt) for attempt in group if attempt.reward is not None and attempt.num_calls]
    found: list[CallAdvantages] = []
    at = 0
    for attempt in group:
        if attempt.reward is None:
            found.append(None)
        elif not attempt.num_calls:
            found.append([])
        else:
            siblings = returns_KC[:at] + returns_KC[at + 1 :]
            found.append([_less_siblings(value, c, siblings) for c, value in enumerate(returns_KC[at])])
            at += 1
    return found


def _less_siblings(value: float, call: int, siblings: Sequence[Sequence[float]]) -> float:
    theirs = np.array([returns_C[min(call, len(returns_C) - 1)] for returns_C in siblings], dtype=np.float64)
    if not theirs.size or are_equal(np.append(theirs, value)):
        return 0.0
    return float(value - theirs.mean())
