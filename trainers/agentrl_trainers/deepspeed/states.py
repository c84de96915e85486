"""The float32 weight and the optimizer's states of each trained parameter, whole, whatever the ZeRO stage and ranks.

ZeRO holds them as slices of flat buffers: stages 1 and 2 cut the flat buffer of a parameter group into one piece a
rank, so that a parameter may lie across several; stage 3 cuts each parameter. Here they are found by the parameter's
name, one parameter at a time. DeepSpeed 0.19's accessors (`safe_get_full_optimizer_state`) would not do: at stages 1
and 2 they know the states of the first parameter group only, at stage 3 they set no parameter that the ranks do not
divide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed import tensor_parallel
from agentrl_trainers.deepspeed.engine import ZeroEngine

WEIGHT, AVERAGE = "weight", "average"
Values = dict[str, torch.Tensor]  # both and the optimizer's keys -> [shape of the parameter], or [] for a number


def states_of(zero: ZeroEngine) -> ParameterStates:
    """The states of `zero`'s parameters."""
    kind = PlainStates if zero.stage == 0 else SlicedStates if zero.stage == 3 else FlatStates
    return kind(zero)


class Place(NamedTuple):
    """Where this rank's share of a parameter lies: elements [start, start + length) of it, at `offset` of `flat`."""

    flat: torch.Tensor  # the buffer that the optimizer steps on; its key in `optimizer.state`
    offset: int
    start: int
    length: int  # may be 0


class ParameterStates(ABC):
    """All ranks call every method together, in the same order and for the same parameters."""

    def __init__(self, zero: ZeroEngine) -> None:
        self._zero = zero
        self.parameters = {name: p for name, p in zero.module.named_parameters() if p.requires_grad}

    @property
    @abstractmethod
    def optimizer(self) -> torch.optim.Optimizer:
        """The one that holds the states."""

    @abstractmethod
    def place(self, parameter: torch.nn.Parameter) -> Place: ...

    @abstractmethod
    def group(self, parameter: torch.nn.Parameter) -> Any:
        """The ranks that hold the shares of `parameter`; None when each holds it whole."""

    @abstractmethod
    def refresh(self) -> None:
        """After the float32 weights changed: give the model its copy of them."""

    def shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        """Of the whole of it; at stage 3 the parameter itself has no elements here."""
        return torch.Size(getattr(parameter, "ds_shape", parameter.shape))

    def whole_shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        """Of the tensor that `parameter` is, or under tensor parallelism is a part of."""
        split = tensor_parallel.is_split(parameter)
        return torch.Size(tensor_parallel.whole_shape(parameter)) if split else self.shape(parameter)

    def read(self, name: str) -> Values:
        """Weight and states of one parameter, on the CPU, on every rank; a number that the optimizer counts is `[]`.

        Raises TrainerError for a state of another size: it belongs to no parameter alone.
        """
        parameter = self.parameters[name]
        place = self.place(parameter)
        values = {WEIGHT: self._assemble(parameter, place.flat, place)}
        for key, value in self.optimizer.state.get(place.flat, {}).items():
            if _is_number(value):
                values[key] = torch.as_tensor(value).detach().clone().cpu()
            elif torch.is_tensor(value) and value.numel() == place.flat.numel():
                values[key] = self._assemble(parameter, value, place)
            else:
                raise TrainerError(
                    f"the optimizer's state {key!r} of {name} has another size than the weight, so that other ranks "
                    "could not take it up; set checkpoint.trainer_state = false, or another trainer.optimizer"
                )
        values = {key: tensor_parallel.whole(parameter, value) for key, value in values.items()}
        if self._zero.average is not None:
            values[AVERAGE] = self._zero.average.whole(parameter)
        return values

    def write(self, name: str, values: Mapping[str, torch.Tensor]) -> None:
        """Put this rank's share of what `read` gave, on whatever layout, where it belongs on this one."""
        parameter = self.parameters[name]
        place = self.place(parameter)
        state = self.optimizer.state[place.flat]
        if self._zero.average is not None:
            self._zero.average.put(parameter, values.get(AVERAGE, values[WEIGHT]))
        for key, value in values.items():
            if key == AVERAGE:
                continue
            value = tensor_parallel.share(parameter, value)
            if value.dim() == 0 and self.shape(parameter) != value.shape:
                state[key] = value.clone() if value.is_floating_point() else value.item()
                continue
            if key != WEIGHT and key not in state:
                state[key] = torch.zeros_like(place.flat)
            target = place.flat if key == WEIGHT else state[key]
            share = value.reshape(-1)[place.start : place.start + place.length]
            target.detach().view(-1)[place.offset : place.offset + place.length].copy_(share)

    def _assemble(self, parameter: torch.nn.Parameter, flat: torch.Tensor, place: Place) -> torch.Tensor:
        """`[shape]`: each element is added to zeros, so that the sum over the ranks is exact."""
        group, shape = self.group(parameter), self.shape(parameter)
        share = flat.detach().reshape(-1)[place.offset : place.offset + place.length]
        if group is None:
            return share.to("cpu", torch.float32, copy=True).view(shape)
        whole = torch.zeros(shape.numel(), dtype=torch.float32, device=self._zero.device)
        whole[place.start : place.start + place.length] = share.to(whole.device, torch.float32)
        dist.all_reduce(whole, group=group)
        return whole.view(shape).cpu()


class PlainStates(ParameterStates):
    """Without ZeRO every rank holds everything."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._zero.engine.optimizer

    def place(self, parameter: torch.nn.Parameter) -> Place:
        return Place(parameter, 0, 0, parameter.numel())

    def group(self, parameter: torch.nn.Parameter) -> None:
        return None

    def refresh(self) -> None:
        """The weights are the model's own."""


class FlatStates(ParameterStates):
    """Stages 1 and 2: one flat buffer a parameter group, one piece of it a rank."""

    def __init__(self, zero: ZeroEngine) -> None:
        super().__init__(zero)
        groups = zero.engine.optimizer.bit16_groups
        self._group_of = {id(p): index for index, group in enumerate(groups) for p in group}

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._zero.engine.optimizer.optimizer

    def place(self, parameter: torch.nn.Parameter) -> Place:
        flat = self._zero.engine.optimizer.single_partition_of_fp32_groups[self._group_of[id(parameter)]]
        if (mapping := parameter._hp_mapping) is None:  # type: ignore[attr-defined]
            return Place(flat, 0, 0, 0)
        piece, ours = mapping.hp_fragment_address, mapping.lp_fragment_address
        return Place(flat, piece.start, ours.start, ours.numel)

    def group(self, parameter: torch.nn.Parameter) -> Any:
        return parameter._dp_group  # type: ignore[attr-defined]

    def refresh(self) -> None:
        self._zero.engine.optimizer.update_lp_params()


class SlicedStates(ParameterStates):
    """Stage 3: one piece a rank of every parameter, padded where the ranks do not divide it."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self._zero.engine.optimizer.optimizer

    def place(self, parameter: torch.nn.Parameter) -> Place:
        zero = self._zero.engine.optimizer
        group, offset, piece = zero.grad_position[zero.get_param_id(parameter)]
        whole = self.shape(parameter).numel()
        start = min(piece * zero._get_param_partition_rank(parameter), whole)
        return Place(zero.fp32_partitioned_groups_flat[group], offset, start, min(piece, whole - start))

    def group(self, parameter: torch.nn.Parameter) -> Any:
        return self._zero.engine.optimizer._get_param_partition_group(parameter)

    def refresh(self) -> None:
        """As after a step: into the pieces that the model gathers from, and into what is kept whole."""
        zero = self._zero.engine.optimizer
        zero._partition_all_parameters()
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (torch.is_tensor(value) and value.dim() == 0)
