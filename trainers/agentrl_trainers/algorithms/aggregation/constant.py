"""Constant aggregation: every row's sum is divided by one constant length, so that no token's weight depends on length.

    weight_t = 1 / (num_rows * length)

Source: Liu et al., "Understanding R1-Zero-Like Training" (Dr. GRPO), arXiv:2503.20783, section 3.2.
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.settings.objective import AggregationConfig


def constant(row_N: torch.Tensor, of: Denominators, config: AggregationConfig) -> torch.Tensor:
    """Weights `[N]`; see `token_mean`."""
    return torch.full(row_N.shape, 1.0 / (of.rows * config.length), device=row_N.device)
