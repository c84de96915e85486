"""The critic's loss, with the clipping of PPO's first implementation.

    clipped_t = old_t + clip(V_t - old_t, -c, c)
    loss_t    = 1/2 * max((V_t - R_t)^2, (clipped_t - R_t)^2)

A value that has moved further than c from the old one, towards its return, gets no more gradient in this step. Source:
OpenAI baselines, ppo2; described as detail 9 in Huang et al., "The 37 Implementation Details of PPO", 2022.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class ValueLoss(NamedTuple):
    loss_N: torch.Tensor  # with gradient
    clipped_N: torch.Tensor  # bool, whose gradient the clipping took away


def value_loss(values_N: torch.Tensor, old_N: torch.Tensor, returns_N: torch.Tensor, clip: float | None) -> ValueLoss:
    """Of N trained tokens, N may be 0. clip: c; None is off. Only `values_N` carries a gradient."""
    free_N = (values_N - returns_N).square()
    if clip is None:
        return ValueLoss(0.5 * free_N, torch.zeros_like(free_N, dtype=torch.bool))
    moved_N = values_N - old_N
    bounded_N = (old_N + moved_N.clamp(-clip, clip) - returns_N).square()
    clipped_N = (bounded_N > free_N) & (moved_N.abs() > clip)  # inside the bound the two differ by rounding
    return ValueLoss(0.5 * torch.maximum(free_N, bounded_N), clipped_N.detach())


def explained_variance(values_A: torch.Tensor, returns_A: torch.Tensor) -> float:
    """1 - Var(R - V) / Var(R): 1 is a perfect critic, 0 no better than a constant. 0 where returns are all equal."""
    variance = returns_A.double().var(correction=0)
    if not variance:
        return 0.0
    return float(1.0 - (returns_A.double() - values_A.double()).var(correction=0) / variance)
