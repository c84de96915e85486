"""CISPO: the importance weight is clipped, not the token, so that every token keeps a gradient.

    weight_t = clip(exp(logprob_t - old_t), 1 - low, 1 + high), without gradient
    loss_t   = -weight_t * A_t * logprob_t

Source: MiniMax, "MiniMax-M1", arXiv:2506.13585, equations 4 and 5; the authors set no lower bound (`clip_low = 1`).
"""

from __future__ import annotations

from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss, importance_ratio
from agentrl_trainers.settings.objective import LossConfig


def cispo(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token; N may be 0. Clipped are those whose weight was bounded."""
    ratio_N = importance_ratio(tokens.logprobs_N.detach() - tokens.old_N)
    weight_N = ratio_N.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    return TokenLoss(-weight_N * tokens.advantages_N * tokens.logprobs_N, weight_N != ratio_N)
