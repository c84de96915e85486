"""PPO's clipped surrogate with separate bounds below and above.

    ratio_t = exp(logprob_t - old_t)
    loss_t  = -min(ratio_t * A_t, clip(ratio_t, 1 - low, 1 + high) * A_t)

Sources: Schulman et al., PPO, arXiv:1707.06347, equation 7; asymmetric bounds ("clip-higher"): Yu et al., DAPO,
arXiv:2503.14476, equation 10. The old policy is the engine that sampled the token, or the trainer at the start of the
step, as `loss.old_policy` says.
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss, importance_ratio
from agentrl_trainers.settings.objective import LossConfig


def ppo_clip(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token; N may be 0."""
    return clipped_surrogate(importance_ratio(tokens.logprobs_N - tokens.old_N), tokens.advantages_N, config)


def clipped_surrogate(ratio_N: torch.Tensor, advantages_N: torch.Tensor, config: LossConfig) -> TokenLoss:
    """The loss above, of any ratio `[N]`."""
    free_N = ratio_N * advantages_N
    bounded_N = torch.clamp(ratio_N, 1.0 - config.clip_low, 1.0 + config.clip_high) * advantages_N
    return TokenLoss(-torch.minimum(free_N, bounded_N), (bounded_N < free_N).detach())
