"""Ranks that share each layer's matrices, by DeepSpeed's AutoTP, and what it leaves to do.

The matrices into a block (queries, keys, values, gate, up) are split by rows of the output, those out of it by columns
of the input; one sum over the ranks ends each block. Source: Shoeybi et al., arXiv:1909.08053. All ranks of a group
pass the same rows, so that what they hold whole has the same gradient on each. Left to do here:

* Norms inside attention (Qwen3's) are held whole but see the rank's own heads only: their gradients are summed.
* Without ZeRO the gradient's norm counts split parameters over the ranks and whole ones once.
* Exports, checkpoints and averages are of whole tensors: `whole` and `share`, and `gathered` for reading in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError

INTO = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")  # split by output
OUT_OF = ("o_proj", "down_proj")  # split by input
MARK = "agentrl_split"  # attribute of a parameter that is split


class Split(NamedTuple):
    dim: int  # of the tensor
    group: Any  # dist.ProcessGroup of the ranks that hold the other parts, in their order
    shape: tuple[int, ...]  # of the whole


def deepspeed_config(ranks: int) -> dict[str, Any]:
    """DeepSpeed's `tensor_parallel` section: our two lists and nothing that it would guess from names."""
    specs = [
        {"patterns": [rf".*\.({'|'.join(names)})\.weight$"], "partition_type": kind}
        for names, kind in ((OUT_OF, "row"), (INTO, "column"))
    ]
    return {"autotp_size": ranks, "partition_config": {"use_default_specs": False, "layer_specs": specs}}


def check(config: Any, ranks: int) -> None:
    """Raise TrainerError unless the model (its transformers config) can be split over `ranks` evenly."""
    heads = config.num_attention_heads
    sizes = {
        "attention heads": heads,
        "heads of keys and values": getattr(config, "num_key_value_heads", heads),
        "columns of its MLP": config.intermediate_size,
    }
    for what, size in sizes.items():
        if size % ranks:
            raise TrainerError(
                f"trainer.tensor_parallel = {ranks} does not divide the model's {size} {what}; set a divisor, "
                "or zero_stage = 3 to split the weights by ZeRO"
            )


def complete(module: torch.nn.Module, num_layers: int) -> None:
    """After DeepSpeed split `module`: note what is split how, and sum the gradients that it leaves partial.

    Raises TrainerError when not all matrices of all layers were found.
    """
    from deepspeed.utils import groups

    group, found = groups.get_tensor_model_parallel_group(), 0
    for name, layer in module.named_modules():
        kind = name.rpartition(".")[2]
        if hasattr(getattr(layer, "weight", None), "gather_params"):
            found += 1
            _mark(layer.weight, 0 if kind in INTO else 1, group)
            if kind in INTO and getattr(layer, "bias", None) is not None:
                _mark(layer.bias, 0, group)
    if found != num_layers * len(INTO + OUT_OF):
        raise TrainerError(
            f"trainer.tensor_parallel knows layers with {', '.join(INTO + OUT_OF)}, and found {found} such matrices in "
            f"{num_layers} layers; use a Llama- or Qwen-type model, or zero_stage = 3"
        )
    for name, parameter in module.named_parameters():
        if ".self_attn." in name and not hasattr(parameter, MARK) and ".o_proj." not in name:
            parameter.register_hook(_summed_over(group))


def is_split(parameter: torch.nn.Parameter) -> bool:
    return hasattr(parameter, MARK)


def whole_shape(parameter: torch.nn.Parameter) -> tuple[int, ...]:
    """Of the parameter that this one is a part of, or its own."""
    return getattr(parameter, MARK).shape if is_split(parameter) else tuple(parameter.shape)


def whole(parameter: torch.nn.Parameter, part: torch.Tensor) -> torch.Tensor:
    """From this rank's `part` of something in the shape of `parameter` (weight, gradient, state) to all of it.

    What is not split, or of another shape (a count), is returned as it is. Collective.
    """
    if not is_split(parameter) or part.shape != parameter.shape:
        return part
    dim, group, _ = getattr(parameter, MARK)
    here = part.detach().to(parameter.device).contiguous()
    parts = [torch.empty_like(here) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, here, group=group)
    return torch.cat(parts, dim).to(part.device)


def share(parameter: torch.nn.Parameter, value: torch.Tensor) -> torch.Tensor:
    """This rank's part of `value`, which is in the shape of the whole; the way back from `whole`. Not collective."""
    if not is_split(parameter) or tuple(value.shape) != whole_shape(parameter):
        return value
    dim, group, _ = getattr(parameter, MARK)
    return value.chunk(dist.get_world_size(group), dim)[dist.get_rank(group)].contiguous()


@contextmanager
def gathered(parameters: Sequence[torch.nn.Parameter]) -> Iterator[None]:
    """In it `parameters` have their whole values, to be read; afterwards each is its own memory again. Collective."""
    parts = [(parameter, parameter.data) for parameter in parameters if is_split(parameter)]
    try:
        for parameter, part in parts:
            parameter.data = whole(parameter, part)
        yield
    finally:
        for parameter, part in parts:
            parameter.data = part


def total_norm(module: torch.nn.Module) -> float:
    """L2 norm of the whole gradient, where every rank holds that of its part reduced over the rows. Collective."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters() if parameter.grad is not None]
    held_whole = torch.nn.utils.get_total_norm(
        [gradient for parameter, gradient in gradients if not is_split(parameter)]
    )
    groups = [getattr(parameter, MARK).group for parameter, _ in gradients if is_split(parameter)]
    if not groups:
        return float(held_whole)
    of_parts = torch.nn.utils.get_total_norm([gradient for parameter, gradient in gradients if is_split(parameter)])
    squared = of_parts.square()
    dist.all_reduce(squared, group=groups[0])
    return math.sqrt(float(squared) + float(held_whole) ** 2)


def _mark(parameter: torch.nn.Parameter, dim: int, group: Any) -> None:
    shape = list(parameter.shape)
    shape[dim] *= dist.get_world_size(group)
    setattr(parameter, MARK, Split(dim, group, tuple(shape)))


def _summed_over(group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def summed(gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    return summed
