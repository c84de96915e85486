"""Whitening of advantages over all trained tokens of a step, where the tokens of a call share one.

    mean = sum(n_c A_c) / sum(n_c)        var = sum(n_c (A_c - mean)^2) / sum(n_c)        (A_c - mean) / sqrt(var)

n_c: trained tokens of call c, so the whitened advantages have mean 0 and variance 1 (ddof = 0) over tokens, not calls.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentrl.train.advantage import Attempt, CallAdvantages
from agentrl_trainers.algorithms.advantages.known import are_equal

Groups = Sequence[Sequence[Attempt]]


def whiten(advantages: Sequence[Sequence[CallAdvantages]], groups: Groups) -> list[list[CallAdvantages]]:
    """The advantages of calls, whitened over the tokens that are trained. None stays None and counts nowhere.

    Without any spread, or any trained token, all are 0.0: their differences are rounding and nothing to divide by.
    """
    values: list[float] = []
    tokens: list[int] = []
    for of_group, group in zip(advantages, groups, strict=True):
        for advantages_C, attempt in zip(of_group, group, strict=True):
            if advantages_C is not None:
                values += advantages_C
                tokens += attempt.call_tokens
    values_N, tokens_N = np.array(values, dtype=np.float64), np.array(tokens, dtype=np.float64)
    trained_N = values_N[tokens_N > 0]
    if are_equal(trained_N):
        return [[None if one is None else [0.0] * len(one) for one in of_group] for of_group in advantages]
    mean = float(np.average(values_N, weights=tokens_N))
    std = float(np.sqrt(np.average((values_N - mean) ** 2, weights=tokens_N)))
    return [
        [None if one is None else [(value - mean) / std for value in one] for one in of_group]
        for of_group in advantages
    ]
