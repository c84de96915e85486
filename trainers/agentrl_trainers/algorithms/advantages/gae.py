"""Generalised advantage estimation over the sampled tokens of each row, with a critic's values.

    delta_t = r_t + gamma * V_{t+1} - V_t
    A_t     = delta_t + gamma * lambda * A_{t+1}
    R_t     = A_t + V_t                              what the critic is trained towards

t counts the row's trained tokens alone: what a tool or another role said between two of them is part of the state, not
a step of time, so nothing decays over it and no value is read there. V_t is the value of the state before token t, and
after the last one it is 0. Source: Schulman et al., arXiv:1506.02438, equations 11 and 16.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Vector = np.ndarray[Any, np.dtype[np.float64]]


class Gae(NamedTuple):
    advantages_A: Vector
    returns_A: Vector


def gae(rewards_A: Vector, values_A: Vector, row_A: np.ndarray[Any, Any], *, gamma: float, lam: float) -> Gae:
    """Advantages and returns `[A]` of A trained tokens, row after row; `row_A` says which row each is in."""
    advantages_A = np.zeros(len(rewards_A), dtype=np.float64)
    row, following, carried = None, 0.0, 0.0  # of the token after this one: its row, value and advantage
    steps = zip(rewards_A.tolist(), values_A.tolist(), row_A.tolist(), strict=True)
    for at, (reward, value, of_row) in reversed(list(enumerate(steps))):
        if of_row != row:
            row, following, carried = of_row, 0.0, 0.0
        carried = reward + gamma * following - value + gamma * lam * carried
        following = value
        advantages_A[at] = carried
    return Gae(advantages_A, advantages_A + values_A)
