"""Logprobs and entropy of chosen tokens from hidden states, without holding the logits of them all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.utils.checkpoint import checkpoint


def token_logprobs(
    logits_NV: torch.Tensor, targets_N: torch.Tensor, temperature_N: torch.Tensor, *, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob of each target under `softmax(logits / temperature)`, and that distribution's entropy.

    Logits `[N, vocab]`, targets and temperatures `[N]`; both results `[N]` float32, the entropy without
    gradient unless it is asked for.
    """
    logprobs_NV = torch.log_softmax(logits_NV.float() / temperature_N[:, None], dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(logprobs_NV.exp() * logprobs_NV).sum(-1)
    return logprobs_NV.gather(-1, targets_N[:, None]).squeeze(-1), entropy_N


def chunked_logprobs(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden_NH: torch.Tensor,
    targets_N: torch.Tensor,
    temperature_N: torch.Tensor,
    *,
    chunk: int,
    entropy_gradient: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`token_logprobs(head(hidden), ...)` over chunks of N: at most `[chunk, vocab]` logits exist at a time.

    With gradient and more than one chunk, each chunk's logits are dropped and computed again in the backward pass.
    """

    def part(
        hidden: torch.Tensor, targets: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return token_logprobs(head(hidden), targets, temperature, entropy_gradient=entropy_gradient)

    if len(targets_N) <= chunk:
        return part(hidden_NH, targets_N, temperature_N)
    pieces = []
    for args in zip(hidden_NH.split(chunk), targets_N.split(chunk), temperature_N.split(chunk), strict=True):
        pieces.append(checkpoint(part, *args, use_reentrant=False) if torch.is_grad_enabled() else part(*args))
    logprobs, entropies = zip(*pieces, strict=True)
    return torch.cat(logprobs), torch.cat(entropies)
