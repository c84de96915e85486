"""Token-mean aggregation: every trained token of the update weighs the same.

    weight_t = 1 / num_tokens        num_tokens of the whole update, over all ranks and micro-batches

Micro-batch size, packing and rank count cannot change the gradient. Source: Yu et al., DAPO, arXiv:2503.14476,
section 3.3.
"""

from __future__ import annotations

import torch

from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.settings.objective import AggregationConfig


def token_mean(row_N: torch.Tensor, of: Denominators, config: AggregationConfig) -> torch.Tensor:
    """Weights `[N]` with which the losses of a micro-batch's tokens are summed; N may be 0.

    row_N: `[N]`, the row that each token is in. The sums of all micro-batches of all ranks are the update's loss.
    """
    return torch.full(row_N.shape, 1.0 / of.tokens, device=row_N.device)
