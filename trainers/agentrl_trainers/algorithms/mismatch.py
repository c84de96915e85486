"""How far the trainer's logprobs are from those recorded when the tokens were sampled.

    d_t   = trainer_t - behaviour_t               ratio_t = exp(d_t)
    k3_t  = ratio_t - 1 - d_t                     mean over sampled tokens estimates KL(behaviour || trainer)

On-policy and in float32 all of it is rounding (1e-6); what is above comes from staleness, a keep-mode swap, or a fault.
Source of k3: Schulman, "Approximating KL divergence", 2020.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class Mismatch(NamedTuple):
    """Sums and extremes over N tokens, so that parts combine exactly: sums add, extremes take the extreme."""

    abs_sum: torch.Tensor  # []
    abs_max: torch.Tensor  # [], 0 when N is 0
    k3_sum: torch.Tensor  # []
    ratio_min: torch.Tensor  # [], inf when N is 0
    ratio_max: torch.Tensor  # [], 0 when N is 0


def mismatch(logprobs_N: torch.Tensor, behaviour_N: torch.Tensor) -> Mismatch:
    """Compare two `[N]` vectors of logprobs of the same sampled tokens, N may be 0. No gradient flows."""
    diff_N = (logprobs_N - behaviour_N).detach().double()
    ratio_N = diff_N.exp()
    bounds = diff_N.new_tensor([0.0, float("inf")])  # what an empty vector leaves
    return Mismatch(
        abs_sum=diff_N.abs().sum(),
        abs_max=torch.cat([diff_N.abs(), bounds[:1]]).max(),
        k3_sum=(torch.expm1(diff_N) - diff_N).sum(),
        ratio_min=torch.cat([ratio_N, bounds[1:]]).min(),
        ratio_max=torch.cat([ratio_N, bounds[:1]]).max(),
    )
