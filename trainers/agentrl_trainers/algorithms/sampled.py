"""What a policy loss, a correction and a divergence see of one forward pass: its trained tokens, each a vector `[N]`.

Rows are never cut by a micro-batch, so whatever is taken over a row or a call can be taken here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class SampledTokens:
    """N may be 0. Only `logprobs_N` and `entropy_N` carry a gradient."""

    logprobs_N: torch.Tensor  # float32, under the weights being trained
    entropy_N: torch.Tensor  # float32, nats
    behaviour_N: torch.Tensor  # float32, recorded when sampled
    proximal_N: torch.Tensor  # float32, under the trainer's weights at the start of the step
    old_N: torch.Tensor  # float32, the one of the two above that `loss.old_policy` names
    advantages_N: torch.Tensor  # float32
    row_N: torch.Tensor  # int64, ascending
    call_N: torch.Tensor  # int64, ascending
    reference_N: torch.Tensor | None = None  # float32, under the reference model


class TokenLoss(NamedTuple):
    """loss_N: `[N]`, with gradient. clipped_N: `[N]` bool, whose gradient the loss took away or bounded."""

    loss_N: torch.Tensor
    clipped_N: torch.Tensor


LARGEST_LOG_RATIO = 20.0


def importance_ratio(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """`[N]`: exp of it, within e^-20 and e^20 (5e8), beyond which it has no gradient.

    Far past what any loss clips at; exp of more overflows, and infinity times the 0 of a clipped gradient is NaN.
    """
    return log_ratio_N.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO).exp()


def total_over(values_N: torch.Tensor, unit_N: torch.Tensor) -> torch.Tensor:
    """`[N]`: at each token the sum of `values_N` over all tokens of its unit (a row, or a call)."""
    if not len(values_N):
        return values_N
    totals = values_N.new_zeros(int(unit_N.max()) + 1).index_add(0, unit_N, values_N)
    return totals[unit_N]


def mean_over(values_N: torch.Tensor, unit_N: torch.Tensor) -> torch.Tensor:
    """`[N]`: at each token the mean of `values_N` over all tokens of its unit."""
    return total_over(values_N, unit_N) / total_over(torch.ones_like(values_N), unit_N)
