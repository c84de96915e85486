"""PPO's clipped surrogate with a third bound: a bad token that became far likelier does not dominate the step.

    loss_t = ppo_clip_t                       where A_t >= 0
    loss_t = min(ppo_clip_t, -c * A_t)        where A_t < 0, c > 1

Source: Ye et al., "Mastering Complex Control in MOBA Games with Deep Reinforcement Learning", arXiv:1912.09729
(c = 3).
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.losses.ppo_clip import ppo_clip
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss
from agentrl_trainers.settings.objective import LossConfig


def dual_clip(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """Loss `[N]` of each sampled token; N may be 0."""
    loss_N, clipped_N = ppo_clip(tokens, config)
    ceiling_N = -config.dual_clip * tokens.advantages_N
    above_N = (tokens.advantages_N < 0) & (loss_N.detach() > ceiling_N)
    return TokenLoss(torch.where(above_N, ceiling_N, loss_N), clipped_N | above_N)
