"""Cross entropy of the tokens that are to be said.

    loss_t = -log p(token_t | tokens before it)

Source: maximum likelihood, prompt masked: Ouyang et al., InstructGPT, arXiv:2203.02155, section 3.5 (SFT).
"""

from __future__ import annotations

import torch


def cross_entropy(logprobs_N: torch.Tensor, weight_N: torch.Tensor) -> torch.Tensor:
    """`[]`: the weighted sum over N trained tokens; N may be 0. The weights are those of an aggregation, `[N]`."""
    return -(logprobs_N * weight_N).sum()
