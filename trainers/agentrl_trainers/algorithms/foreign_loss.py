"""What a policy loss of the user's own gave back, checked where it is called, so that the fault is named there."""

from __future__ import annotations

import torch

from agentrl.errors import TrainerError
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss


def checked(loss: object, tokens: SampledTokens, name: str) -> TokenLoss:
    """`loss` itself. Raises TrainerError, naming the loss `name` and what is wrong, for what cannot be trained on."""
    what = f"policy loss {name!r}"
    if not isinstance(loss, TokenLoss):
        raise TrainerError(f"{what} returned a {type(loss).__name__}; return a TokenLoss(loss_N, clipped_N)")
    of = tokens.logprobs_N
    for field, value in loss._asdict().items():
        if not isinstance(value, torch.Tensor) or value.shape != of.shape:
            found = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
            raise TrainerError(
                f"{what} returned {field} as {found} for {len(of)} tokens; it must be [{len(of)}], one value a token: "
                "means are the aggregation's"
            )
    if loss.clipped_N.dtype != torch.bool:
        raise TrainerError(f"{what} returned clipped_N as {loss.clipped_N.dtype}; it must be torch.bool")
    if of.requires_grad and not loss.loss_N.requires_grad:
        raise TrainerError(f"{what} returned loss_N without a gradient; make it of tokens.logprobs_N, not detached")
    bad = (~torch.isfinite(loss.loss_N.detach()) & torch.isfinite(of.detach())).nonzero()
    if len(bad):
        at = int(bad[0])
        raise TrainerError(
            f"{what} is {loss.loss_N[at].item()} at {len(bad)} of {len(of)} tokens, the first with "
            f"logprob {of[at].item():g}, old {tokens.old_N[at].item():g}, advantage {tokens.advantages_N[at].item():g}"
        )
    return loss
