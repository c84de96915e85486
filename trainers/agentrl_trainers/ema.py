"""A moving average of the weights, held where the weights are: under ZeRO-3 each rank averages its own shards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist

from agentrl_trainers.deepspeed import tensor_parallel


class WeightAverage:
    """`average = decay * average + (1 - decay) * weight` after every update, in float32; it starts as the weights.

    ZeRO 0 to 2 hold whole weights on every rank, and so whole averages. Weights that are not trained have none.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float) -> None:
        """parameters: after DeepSpeed has taken them over."""
        self.decay = decay
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._averages = {id(parameter): _held(parameter).detach().float().clone() for parameter in self._parameters}

    def update(self) -> None:
        """Take in the weights as they are. Not collective; for after each update that was made."""
        for parameter in self._parameters:
            self._averages[id(parameter)].lerp_(_held(parameter).detach().float(), 1.0 - self.decay)

    def held(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """What this rank has of the average of `parameter`."""
        return self._averages[id(parameter)]

    def whole(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """The average of `parameter`, in its shape, float32 on the CPU, on every rank. Collective."""
        average = self.held(parameter)
        if not _is_sharded(parameter):
            return tensor_parallel.whole(parameter, average).to("cpu", copy=True)
        facts: Any = parameter
        here = average.to(parameter.device)  # offloaded shards are on the host, where nccl cannot gather them
        shards = [torch.empty_like(here) for _ in range(dist.get_world_size(facts.ds_process_group))]
        dist.all_gather(shards, here, group=facts.ds_process_group)
        return torch.cat(shards).flatten()[: facts.ds_numel].view(facts.ds_shape).cpu()

    def put(self, parameter: torch.nn.Parameter, whole: torch.Tensor) -> None:
        """Go on from this average of `parameter`, of which the rank takes its share. Not collective."""
        average = self.held(parameter)
        if not _is_sharded(parameter):
            average.copy_(tensor_parallel.share(parameter, whole))
            return
        start = average.numel() * dist.get_rank(parameter.ds_process_group)  # type: ignore[attr-defined]
        share = whole.flatten()[start : start + average.numel()]
        average.view(-1)[: share.numel()].copy_(share)


def _is_sharded(parameter: torch.nn.Parameter) -> bool:
    """Under ZeRO-3, and not one of the small ones that stay whole on every rank."""
    return hasattr(parameter, "ds_tensor") and not parameter.ds_persist  # type: ignore[attr-defined]


def _held(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.ds_tensor if _is_sharded(parameter) else parameter.data  # type: ignore[attr-defined]
