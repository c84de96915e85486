"""REINFORCE: the score function alone, with no ratio and nothing clipped.

    loss_t = -A_t * logprob_t

Right for tokens that the weights being trained sampled; a correction makes it right for others.
Source: Williams, "Simple Statistical Gradient-Following Algorithms", Machine Learning 8, 1992.
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss
from agentrl_trainers.settings.objective import LossConfig


def reinforce(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token; N may be 0."""
    clipped_N = torch.zeros_like(tokens.logprobs_N, dtype=torch.bool)
    return TokenLoss(-tokens.advantages_N * tokens.logprobs_N, clipped_N)
