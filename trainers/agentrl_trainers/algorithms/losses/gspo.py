"""GSPO: one importance ratio for a whole row, clipped as one.

    s      = exp(mean over the row's tokens of (logprob_t - old_t))
    s_t    = sg(s) * exp(logprob_t - sg(logprob_t))                sg: without gradient, so s_t has the value s
    loss_t = -min(s_t * A_t, clip(s_t, 1 - low, 1 + high) * A_t)

With one advantage in a row and `sequence_mean` the gradient is that of the sequence's own surrogate; with advantages
that differ within a row each token keeps its own. Source: Zheng et al., "Group Sequence Policy Optimization",
arXiv:2507.18071, equations 5, 7, 13 and 14 (GSPO-token).
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.losses.ppo_clip import clipped_surrogate
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss, importance_ratio, mean_over
from agentrl_trainers.settings.objective import LossConfig


def gspo(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token; N may be 0."""
    now_N = tokens.logprobs_N.detach()
    sequence_N = importance_ratio(mean_over(now_N - tokens.old_N, tokens.row_N))
    return clipped_surrogate(sequence_N * torch.exp(tokens.logprobs_N - now_N), tokens.advantages_N, config)
