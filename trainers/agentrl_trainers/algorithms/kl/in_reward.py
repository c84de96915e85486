"""The divergence as part of the reward: each sampled token pays for what the reference would not have said.

    p_t = beta * (policy_t - reference_t)             logprobs of the token, under the policy that sampled it

With a critic, r_t - p_t is the reward of the token. With advantages that were made of the rewards of whole episodes, a
token pays for itself and for what followed it in its row, with no discount:

    A_t = A_t - sum of p_s over s >= t

Source: Ziegler et al., "Fine-Tuning Language Models from Human Preferences", arXiv:1909.08593, equation 2; its
policy gradient is the second form.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agentrl_trainers.algorithms.advantages.gae import Vector


def penalties(behaviour_A: Vector, reference_A: Vector, coefficient: float) -> Vector:
    """`[A]`: p_t of each trained token."""
    return coefficient * (behaviour_A - reference_A)


def from_here_on(values_A: Vector, row_A: np.ndarray[Any, Any]) -> Vector:
    """`[A]`: the sum of `values_A` over the token and those after it in its row."""
    sums_A = np.empty_like(values_A)
    ends = np.flatnonzero(np.diff(row_A, append=-1)) + 1  # rows ascend, and none is -1
    start = 0
    for end in ends.tolist():
        sums_A[start:end] = np.cumsum(values_A[start:end][::-1])[::-1]
        start = end
    return sums_A
