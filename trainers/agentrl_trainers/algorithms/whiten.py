"""Whitening over all trained tokens of a step: mean 0 and, where there is any spread, variance 1 (ddof = 0)."""

from __future__ import annotations

import numpy as np

from agentrl_trainers.algorithms.advantages.gae import Vector
from agentrl_trainers.algorithms.advantages.known import are_equal


def whiten(values_A: Vector) -> Vector:
    """`[A]`. Values that are all equal, or a lone one, give 0: their spread is rounding and is never divided by."""
    if are_equal(values_A):
        return np.zeros_like(values_A)
    return (values_A - values_A.mean()) / values_A.std()
