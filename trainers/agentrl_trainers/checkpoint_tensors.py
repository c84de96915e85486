"""A model's tensors as a checkpoint spells them, whatever they are made of in the trainer."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from agentrl_trainers.deepspeed import tensor_parallel


class LowRank(NamedTuple):
    """What an adapter adds to a weight `[out, in]`: `scale * up @ down` (transposed where the layer is)."""

    down: torch.nn.Parameter  # [rank, in]
    up: torch.nn.Parameter  # [out, rank]
    scale: float
    transposed: bool  # the weight is [in, out], as in transformers' Conv1D


class CheckpointTensor(NamedTuple):
    """A parameter, and the adapter on it if there is one. Under ZeRO-3 gather `parameters` before `value`."""

    weight: torch.nn.Parameter
    low_rank: LowRank | None = None

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [self.weight] if self.low_rank is None else [self.weight, self.low_rank.down, self.low_rank.up]

    @property
    def trained(self) -> bool:
        return any(parameter.requires_grad for parameter in self.parameters)

    @property
    def dtype(self) -> torch.dtype:
        """Of `value`."""
        packed = getattr(self.weight, "quant_state", None)
        return self.weight.dtype if packed is None else packed.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of `value`."""
        packed = getattr(self.weight, "quant_state", None)
        own = tensor_parallel.whole_shape(self.weight)
        return tuple(getattr(self.weight, "ds_shape", own) if packed is None else packed.shape)

    @property
    def num_bytes(self) -> int:
        """Of `value`. Under ZeRO-3 the parameter itself has 0 elements here and knows its shape otherwise."""
        return math.prod(self.shape) * self.dtype.itemsize

    @torch.no_grad()
    def value(self, device: str | torch.device = "cpu", *, copy: bool = True) -> torch.Tensor:
        """The tensor that a checkpoint holds, contiguous. An adapter is merged into a copy, in float32.

        copy: also of what need not be merged or moved; otherwise it may be the parameter's own memory. The weight is
        never written: merging into it and taking that back would leave it a little off each time.
        """
        weight = _unpacked(self.weight) if hasattr(self.weight, "quant_state") else self.weight.detach()
        if self.low_rank is None:
            return weight.to(device, copy=copy).contiguous()
        down, up, scale, transposed = self.low_rank
        added = (up.detach().float() @ down.detach().float()) * scale
        merged = weight.float() + (added.T if transposed else added)
        return merged.to(device, weight.dtype).contiguous()


def checkpoint_tensors(
    module: torch.nn.Module, low_rank: Mapping[str, LowRank] | None = None
) -> dict[str, CheckpointTensor]:
    """By checkpoint name, tied tensors once. low_rank: by the name of the parameter of `module` that it is added to.

    The adapters' own parameters are no tensors of the checkpoint.
    """
    low_rank = low_rank or {}
    adapters = {id(parameter) for added in low_rank.values() for parameter in (added.down, added.up)}
    return {
        name.replace(".base_layer.", "."): CheckpointTensor(parameter, low_rank.get(name))
        for name, parameter in module.named_parameters()
        if id(parameter) not in adapters
    }


def _unpacked(weight: Any) -> torch.Tensor:
    """A 4-bit weight (bitsandbytes) as the layer computes with it. Not run: it needs a GPU."""
    functional = importlib.import_module("bitsandbytes.functional")
    unpacked: torch.Tensor = functional.dequantize_4bit(weight.data, weight.quant_state)
    return unpacked
