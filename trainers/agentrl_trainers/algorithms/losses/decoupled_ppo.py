"""Decoupled PPO: clipped against where the step began, weighted by who sampled the token.

    ratio_t  = exp(logprob_t - proximal_t)
    weight_t = exp(proximal_t - behaviour_t), without gradient
    loss_t   = -weight_t * min(ratio_t * A_t, clip(ratio_t, 1 - low, 1 + high) * A_t)

A stale sample so keeps its full trust region. The weight has no bound; with one it is `ppo_clip` with
`old_policy = "proximal"` and a correction that clips or truncates. Sources: Hilton et al., "Batch size-invariance for
policy optimization", arXiv:2110.00641; Fu et al., AReaL, arXiv:2505.24298.
"""

from __future__ import annotations

from dataclasses import replace

from agentrl_trainers.algorithms.losses.ppo_clip import ppo_clip
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss, importance_ratio
from agentrl_trainers.settings.objective import LossConfig


def decoupled_ppo(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token, whatever `config.old_policy` says; N may be 0."""
    clip = ppo_clip(replace(tokens, old_N=tokens.proximal_N), config)
    weight_N = importance_ratio(tokens.proximal_N - tokens.behaviour_N)
    return TokenLoss(weight_N * clip.loss_N, clip.clipped_N)
