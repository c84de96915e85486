"""Token-mean aggregation with the denominator of the whole batch.

    loss = sum over micro-batches m, ranks d of ( sum_t loss_t / num_tokens )      num_tokens of the whole Batch

Every trained token weighs the same wherever it lies, so micro-batch size, packing and rank count cannot change the
gradient. Source: Yu et al., DAPO, arXiv:2503.14476, section 3.3.
"""

from __future__ import annotations

import torch


def token_mean(loss_N: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """This micro-batch's share `[]` of the batch loss; the shares of all micro-batches of all ranks add up to it.

    loss_N: `[N]`, per trained token, N may be 0. num_tokens: trained tokens of the whole batch.
    """
    return loss_N.sum() / num_tokens
