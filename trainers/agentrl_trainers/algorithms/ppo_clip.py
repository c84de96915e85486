"""PPO's clipped surrogate with separate bounds below and above.

    ratio_t = exp(logprob_t - behaviour_t)
    loss_t  = -min(ratio_t * A_t, clip(ratio_t, 1 - low, 1 + high) * A_t)

Sources: Schulman et al., PPO, arXiv:1707.06347, equation 7; asymmetric bounds ("clip-higher"): Yu et al., DAPO,
arXiv:2503.14476, equation 10. The behaviour policy is the engine that sampled the token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch


class PpoClip(NamedTuple):
    loss_N: torch.Tensor  # [N], of each trained token
    ratio_N: torch.Tensor  # [N], detached
    clipped_N: torch.Tensor  # [N] bool, where the bound took the gradient away


def ppo_clip(
    logprobs_N: torch.Tensor, behaviour_N: torch.Tensor, advantages_N: torch.Tensor, *, low: float, high: float
) -> PpoClip:
    """Loss of N trained tokens; masked ones are not among them. Inputs `[N]`, only `logprobs_N` has a gradient."""
    ratio_N = torch.exp(logprobs_N - behaviour_N)
    free_N = ratio_N * advantages_N
    bounded_N = torch.clamp(ratio_N, 1.0 - low, 1.0 + high) * advantages_N
    return PpoClip(-torch.minimum(free_N, bounded_N), ratio_N.detach(), (bounded_N < free_N).detach())
