"""Sequence-mean aggregation: every row weighs the same, and within it every trained token.

    weight_t = 1 / (num_rows * tokens_of_row(t))

A token of a long answer weighs less than one of a short answer. Source: Shao et al., DeepSeekMath, arXiv:2402.03300,
equation 3 (the 1/G and 1/|o_i| of GRPO).
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.algorithms.sampled import total_over
from agentrl_trainers.settings.objective import AggregationConfig


def sequence_mean(row_N: torch.Tensor, of: Denominators, config: AggregationConfig) -> torch.Tensor:
    """Weights `[N]`; see `token_mean`. A micro-batch never cuts a row, so a row's tokens are all here."""
    return 1.0 / (of.rows * total_over(torch.ones(row_N.shape, device=row_N.device), row_N))
