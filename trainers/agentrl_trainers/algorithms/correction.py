"""Off-policy correction: how much a sampled token may weigh, by how likely the trainer finds what the engine sampled.

    d_t     = proximal_t - behaviour_t
    ratio_t = exp of: d_t (token); the sum of d over the call (call), over the row (sequence); its mean (geometric)
    mask           1 inside [low, high], 0 outside: for losses whose own ratio corrects already
    weighted_mask  ratio inside [low, high], 0 outside
    clip           ratio clamped to [low, high]
    truncate       min(ratio, high)

Weights carry no gradient. A masked token stays in the denominator of the mean, so that masking one leaves the weight of
the others alone. Sources of the presets (`CORRECTION_PRESETS`):

    tis             Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025; C = 2
    icepop          Ling Team, "Every Step Evolves" (Ring-1T), arXiv:2510.18855; 0.5 and 5
    mis             Liu et al., "When Speed Kills Stability", 2025, part 3: rho(y) where rho(y) <= C, of a sequence
    sequence_mask   the same as a rejection, no weight; 0.5 and 2 as in verl's rollout correction
    geometric_mask  the same over the mean log ratio, whose bound does not tighten with length; 0.999 and 1.001
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from agentrl_trainers.algorithms.sampled import SampledTokens, mean_over, total_over
from agentrl_trainers.settings.objective import CorrectionConfig


class Correction(NamedTuple):
    weight_N: torch.Tensor  # float32, 1 where nothing is corrected
    outside_N: torch.Tensor  # bool, where the ratio was out of bounds


def correct(tokens: SampledTokens, config: CorrectionConfig) -> Correction:
    """Weights `[N]` of the losses of N sampled tokens; N may be 0."""
    if config.mode == "off":
        ones_N = torch.ones_like(tokens.behaviour_N)
        return Correction(ones_N, torch.zeros_like(ones_N, dtype=torch.bool))
    ratio_N = torch.exp(log_ratio(tokens, config.level))
    low = 0.0 if config.mode == "truncate" else config.low
    outside_N = (ratio_N < low) | (ratio_N > config.high)
    if config.mode == "mask":
        return Correction((~outside_N).to(ratio_N.dtype), outside_N)
    if config.mode == "weighted_mask":
        return Correction(ratio_N.masked_fill(outside_N, 0.0), outside_N)
    return Correction(ratio_N.clamp(low, config.high), outside_N)


def log_ratio(tokens: SampledTokens, level: str) -> torch.Tensor:
    """`[N]`, without gradient: log of the ratio at each token, by the level that it is taken over."""
    diff_N = (tokens.proximal_N - tokens.behaviour_N).detach()
    if level == "token":
        return diff_N
    if level == "geometric":
        return mean_over(diff_N, tokens.row_N)
    return total_over(diff_N, tokens.call_N if level == "call" else tokens.row_N)
