"""Several ranks pass the same rows, each a slice of the tokens; in attention each has all tokens of a slice of heads.

Every matrix but attention's works on single tokens, so a rank can pass a slice of each sequence. Around attention two
all-to-all exchanges turn slices of tokens into slices of heads and back. Source: Jacobs et al., "DeepSpeed Ulysses",
arXiv:2309.14509. Logprobs are joined on all ranks afterwards, so that what looks at whole rows (ratios of a sequence)
still sees them; each rank's gradient is then that of its own tokens, and the sum over the ranks is the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class TokenShare:
    """`index` of `size` consecutive slices of every sequence; the other ranks of `group` have the others."""

    group: Any  # dist.ProcessGroup
    index: int
    size: int

    def cut(self, tokens: torch.Tensor) -> torch.Tensor:
        """This rank's slice `[B, ceil(L / size)]` of `[B, L]`, filled with zeros past the end."""
        width = self.width(tokens.shape[1])
        padded = torch.nn.functional.pad(tokens, (0, width * self.size - tokens.shape[1]))
        return padded[:, self.index * width : (self.index + 1) * width]

    def width(self, length: int) -> int:
        return -(-length // self.size)

    def mine(self, flat_N: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Which flat indices into `[B, L]` are in this rank's slice, `[N]` bool, and where in the slice those are."""
        width = self.width(length)
        columns = flat_N % length
        mine_N = columns // width == self.index
        return mine_N, ((flat_N // length) * width + columns % width)[mine_N]

    def join(self, values: torch.Tensor, mine_N: torch.Tensor) -> torch.Tensor:
        """`[N]` on every rank, from each rank's values at its own positions. Gradients go back to the owner only."""
        joined: torch.Tensor = _Join.apply(values, mine_N, self.group)
        return joined

    def heads_for_tokens(self, states: torch.Tensor) -> torch.Tensor:
        """`[B, heads, L / size, D]` of all heads to `[B, heads / size, L, D]` of all tokens."""
        batch, heads, width, dim = states.shape
        parts = states.reshape(batch, self.size, heads // self.size, width, dim).movedim(1, 0)
        swapped: torch.Tensor = _Exchange.apply(parts, self.group)  # [slices of L, B, heads / size, L / size, D]
        return swapped.movedim(0, 2).reshape(batch, heads // self.size, self.size * width, dim)

    def tokens_for_heads(self, states: torch.Tensor) -> torch.Tensor:
        """The way back: `[B, heads / size, L, D]` to `[B, heads, L / size, D]`."""
        batch, heads, length, dim = states.shape
        parts = states.reshape(batch, heads, self.size, length // self.size, dim).movedim(2, 0)
        swapped: torch.Tensor = _Exchange.apply(parts, self.group)  # [slices of heads, B, heads / size, L / size, D]
        return swapped.movedim(0, 1).reshape(batch, heads * self.size, length // self.size, dim)


def states_of(
    body: Any,
    input_ids: torch.Tensor,  # [B, L]
    position_ids: torch.Tensor,  # [B, L]
    predictors_N: torch.Tensor,  # [N], flat index into B*L
    segment_lengths: Sequence[int] | None,
    share: TokenShare | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Last hidden states at `predictors_N`: `[N, H]` and None, or those in this rank's share and which they are."""
    kwargs: dict[str, Any] = {} if segment_lengths is None else {"segment_lengths": segment_lengths}
    length, mine_N = input_ids.shape[1], None
    if share is not None:
        mine_N, predictors_N = share.mine(predictors_N, length)
        input_ids, position_ids = share.cut(input_ids), share.cut(position_ids)
        kwargs["token_share"] = share
    states = body(input_ids=input_ids, position_ids=position_ids, use_cache=False, **kwargs).last_hidden_state
    return states.flatten(0, 1).index_select(0, predictors_N), mine_N


class _Exchange(torch.autograd.Function):
    """Slice i of the first dimension goes to rank i; what comes from rank i is slice i. It is its own inverse."""

    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return _exchange(parts, group)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchange(gradient, ctx.group), None


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, mine_N: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.save_for_backward(mine_N)
        joined = values.new_zeros(mine_N.shape)
        joined[mine_N] = values
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (mine_N,) = ctx.saved_tensors
        return gradient[mine_N], None, None


def _exchange(parts: torch.Tensor, group: Any) -> torch.Tensor:
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    return received
