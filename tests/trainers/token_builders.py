"""Tokens of a micro-batch for the pure pieces of the objective, with their logprobs as leaves of the graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agentrl_trainers.algorithms.sampled import SampledTokens


def sampled(
    logprobs: Sequence[float] | torch.Tensor,
    *,
    advantages: Sequence[float] | torch.Tensor,
    behaviour: Sequence[float] | None = None,
    proximal: Sequence[float] | None = None,
    old: str = "behaviour",
    rows: Sequence[int] | None = None,
    calls: Sequence[int] | None = None,
    reference: Sequence[float] | None = None,
    dtype: torch.dtype = torch.float64,
) -> SampledTokens:
    """Of one row unless `rows` says otherwise. What is left out of `behaviour` and `proximal` is 0."""
    logprobs_N = torch.as_tensor(logprobs, dtype=dtype)
    if not logprobs_N.requires_grad:
        logprobs_N = logprobs_N.requires_grad_()
    zeros = [0.0] * len(logprobs_N)
    named = {
        "behaviour": torch.tensor(behaviour or zeros, dtype=dtype),
        "proximal": torch.tensor(proximal or zeros, dtype=dtype),
    }
    return SampledTokens(
        logprobs_N=logprobs_N,
        entropy_N=torch.zeros_like(logprobs_N),
        behaviour_N=named["behaviour"],
        proximal_N=named["proximal"],
        old_N=named[old],
        advantages_N=torch.as_tensor(advantages, dtype=dtype),
        row_N=torch.tensor(rows or [0] * len(logprobs_N), dtype=torch.long),
        call_N=torch.tensor(calls or rows or [0] * len(logprobs_N), dtype=torch.long),
        reference_N=None if reference is None else torch.tensor(reference, dtype=dtype),
    )
