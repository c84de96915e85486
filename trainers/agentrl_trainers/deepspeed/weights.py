"""The trained weights as whole tensors, a group at a time, and all of them as a Hugging Face directory."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from agentrl_trainers.checkpoint_tensors import checkpoint_tensors
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.export import (
    check_names,
    copy_all_but_weights,
    replace,
    save,
    shards_of,
    write_config,
)
from agentrl_trainers.ema import WeightAverage
from agentrl_trainers.weight_groups import TensorGroup, changing, weight_groups

if TYPE_CHECKING:
    from agentrl_trainers.adapter import Adapter


class WeightSource:
    """The policy's tensors by checkpoint name, an adapter merged into them. All ranks call every method together.

    groups: all of them. changed: those that training can change, with what an engine needs beside them to load them;
    the names of the others are `kept`. Tied tensors appear once. Raises TrainerError when names differ from those of
    the directory that was loaded: then an engine would not find the weights it is sent.
    """

    def __init__(
        self,
        zero: ZeroEngine,
        lm: PreTrainedModel,
        model_path: str | Path,
        *,
        min_bytes: int,
        adapter: Adapter | None = None,
    ) -> None:
        self._zero, self._source = zero, Path(model_path)
        self.adapter = adapter
        self._tensors = checkpoint_tensors(lm, adapter.low_rank if adapter else None)
        everywhere = {name.replace(".base_layer.", ".") for name, _ in lm.named_parameters(remove_duplicate=False)}
        tied = {name for name in everywhere if ".lora_" not in name} - self._tensors.keys()
        self._check_names(tied)
        sizes = {name: tensor.num_bytes for name, tensor in self._tensors.items()}
        changed = changing({name: tensor.trained for name, tensor in self._tensors.items()})
        self.groups: list[TensorGroup] = weight_groups(sizes, min_bytes=min_bytes)
        self.changed: list[TensorGroup] = weight_groups(
            {name: size for name, size in sizes.items() if name in changed}, min_bytes=min_bytes
        )
        self.kept: tuple[str, ...] = tuple(name for name in self._tensors if name not in changed)

    def gather(
        self, names: Sequence[str], *, everywhere: bool = False, device: str | torch.device = "cpu"
    ) -> dict[str, torch.Tensor]:
        """Whole values of `names`, contiguous, on rank 0, or on all; {} elsewhere. The copy is the caller's."""
        wanted = {name: self._tensors[name] for name in names}
        with self._zero.gathered([parameter for tensor in wanted.values() for parameter in tensor.parameters]):
            if dist.get_rank() and not everywhere:
                return {}
            return {name: tensor.value(device) for name, tensor in wanted.items()}

    @contextmanager
    def lent(self, names: Sequence[str]) -> Iterator[dict[str, torch.Tensor]]:
        """As `gather`, on rank 0's CPU, and not copied where they are there already: to be read inside the context."""
        wanted = {name: self._tensors[name] for name in names}
        with self._zero.gathered([parameter for tensor in wanted.values() for parameter in tensor.parameters]):
            here = dist.get_rank() == 0
            yield {name: tensor.value(copy=False) for name, tensor in wanted.items()} if here else {}

    @contextmanager
    def lent_adapter(self) -> Iterator[dict[str, torch.Tensor]]:
        """The adapter's own tensors by peft's names, likewise."""
        named = {} if self.adapter is None else self.adapter.tensors
        with self._zero.gathered(list(named.values())):
            here = dist.get_rank() == 0
            yield {name: tensor.detach().cpu().contiguous() for name, tensor in named.items()} if here else {}

    def metadata(self, groups: Sequence[TensorGroup]) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
        """Name, dtype and shape of each tensor of `groups`, in their order. Not collective."""
        named = [(name, self._tensors[name]) for group in groups for name in group.names]
        return [(name, tensor.dtype, tensor.shape) for name, tensor in named]

    def export(self, directory: str | Path, version: int) -> None:
        """A Hugging Face directory of the weights as they are, whole or not there at all; replaces an older one.

        Config and tokenizer files are those that were loaded, with the dtype of the weights written here. An adapter
        is merged into the weights, and is there by itself in `adapter/`, as peft loads it. A moving average of the
        weights is a directory of the same kind in `average/`.
        """
        final = Path(directory)
        partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
        if dist.get_rank() == 0:
            copy_all_but_weights(self._source, partial)
            self._write_config(partial)
            (partial / "agentrl.json").write_text(json.dumps({"version": version}) + "\n")
        self._export_shards(partial, self.gather)
        if self._zero.average is not None:
            self._export_average(partial / "average", self._zero.average)
        if self.adapter is not None:
            self._export_adapter(partial / "adapter", self.adapter)
        if dist.get_rank() == 0:
            replace(partial, final, str(os.getpid()))
        dist.barrier()

    def _export_adapter(self, directory: Path, adapter: Adapter) -> None:
        with self.lent_adapter() as tensors:
            if tensors:
                save(tensors, directory / "adapter_model.safetensors")
                adapter.write_config(directory, self._source)

    def _check_names(self, tied: Set[str]) -> None:
        check_names(self._tensors.keys(), tied, self._source)

    def _write_config(self, directory: Path) -> None:
        write_config(self._source, directory, next(iter(self._tensors.values())).dtype)

    def _export_average(self, directory: Path, average: WeightAverage) -> None:
        def gather(names: Sequence[str]) -> dict[str, torch.Tensor]:
            gathered = self.gather(names)  # those that are not trained stay as they are
            for name in names:
                if (tensor := self._tensors[name]).trained:
                    whole = average.whole(tensor.weight)
                    gathered |= {name: whole.to(tensor.dtype)} if dist.get_rank() == 0 else {}
            return gathered

        if dist.get_rank() == 0:
            copy_all_but_weights(self._source, directory)
            self._write_config(directory)
        self._export_shards(directory, gather)

    def _export_shards(self, directory: Path, gather: Callable[[Sequence[str]], dict[str, torch.Tensor]]) -> None:
        shards = shards_of(self.groups)
        files: dict[str, str] = {}
        for number, groups in enumerate(shards, start=1):
            name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            tensors: dict[str, torch.Tensor] = {}
            for group in groups:
                tensors |= gather(group.names)
            if tensors:
                save(tensors, directory / name)
            files |= dict.fromkeys(tensors, name)
        if len(shards) > 1 and files:
            total = sum(group.num_bytes for group in self.groups)
            index = {"metadata": {"total_size": total}, "weight_map": files}
            (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
