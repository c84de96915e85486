"""Weights out of the ranks: one group at a time into shared memory, or all of them as a Hugging Face directory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence, Set
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from agentrl.digest import digest_of_file
from agentrl.errors import TrainerError
from agentrl.types import WeightGroup
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.weight_groups import TensorGroup, weight_groups

SHARD_BYTES = 2 << 30  # of an exported file; what rank 0 holds at most while exporting, plus one group
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".gguf", ".pt", ".pth")


class WeightSource:
    """The trained tensors by checkpoint name. All ranks call every method together; only rank 0 writes.

    Tied tensors appear once. Raises TrainerError when names differ from those of the directory that was loaded: then
    an engine would not find the weights it is sent.
    """

    def __init__(self, zero: ZeroEngine, lm: PreTrainedModel, model_path: str | Path, *, min_bytes: int) -> None:
        self._zero, self._source = zero, Path(model_path)
        self._tensors = dict(lm.named_parameters())  # remove_duplicate drops the second name of a tied tensor
        tied = {name for name, _ in lm.named_parameters(remove_duplicate=False)} - self._tensors.keys()
        check_names(self._tensors.keys(), tied, self._source)
        sizes = {name: _full_bytes(tensor) for name, tensor in self._tensors.items()}
        self.groups: list[TensorGroup] = weight_groups(sizes, min_bytes=min_bytes)

    def gather(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """Full values of `names`, on the CPU and contiguous, on rank 0; {} elsewhere. The copy is the caller's."""
        with self._zero.gathered([self._tensors[name] for name in names]):
            if dist.get_rank():
                return {}
            return {name: self._tensors[name].detach().to("cpu", copy=True).contiguous() for name in names}

    def write_group(self, version: int, index: int, directory: str | Path) -> WeightGroup | None:
        """Write group `index` as `version` into `directory` (shared memory); described on rank 0, None elsewhere."""
        if not 0 <= index < len(self.groups):
            raise TrainerError(f"weight group {index} was asked for; there are {len(self.groups)}, from 0")
        group = self.groups[index]
        tensors = self.gather(group.names)
        if dist.get_rank():
            return None
        path = Path(directory) / f"v{version:06d}-g{index:04d}.safetensors"
        _save(tensors, path)
        return WeightGroup(
            version=version,
            index=index,
            count=len(self.groups),
            path=str(path),
            digest=digest_of_file(path),
            names=group.names,
            num_bytes=path.stat().st_size,
        )

    def export(self, directory: str | Path, version: int) -> None:
        """A Hugging Face directory of the weights as they are, whole or not there at all; replaces an older one.

        Config and tokenizer files are those that were loaded, with the dtype of the weights written here.
        """
        final = Path(directory)
        partial = final.with_name(f".{final.name}.{os.getpid()}.partial")
        if dist.get_rank() == 0:
            _copy_all_but_weights(self._source, partial)
            _write_config(self._source, partial, next(iter(self._tensors.values())).dtype)
            (partial / "agentrl.json").write_text(json.dumps({"version": version}) + "\n")
        self._export_shards(partial)
        if dist.get_rank() == 0:
            _replace(partial, final)
        dist.barrier()

    def _export_shards(self, directory: Path) -> None:
        shards = _shards(self.groups)
        files: dict[str, str] = {}
        for number, groups in enumerate(shards, start=1):
            name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            tensors: dict[str, torch.Tensor] = {}
            for group in groups:
                tensors |= self.gather(group.names)
            if tensors:
                _save(tensors, directory / name)
            files |= dict.fromkeys(tensors, name)
        if len(shards) > 1 and files:
            total = sum(group.num_bytes for group in self.groups)
            index = {"metadata": {"total_size": total}, "weight_map": files}
            (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def _full_bytes(tensor: torch.nn.Parameter) -> int:
    """Bytes of the whole tensor; under ZeRO-3 the tensor itself has 0 elements here and knows its size otherwise."""
    return int(getattr(tensor, "ds_numel", tensor.numel())) * tensor.element_size()


def check_names(ours: Set[str], tied: Set[str], source: Path) -> None:
    """Raise TrainerError unless `ours`, with or without `tied`, are the tensor names of the safetensors in `source`."""
    theirs: set[str] = set()
    for file in source.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            theirs |= set(opened.keys())
    if theirs - tied != ours:
        odd = sorted((theirs - tied) ^ ours)[:4]
        raise TrainerError(
            f"{source} spells its tensors differently from the loaded model, first: {', '.join(odd)}; "
            "re-save it with transformers' save_pretrained as safetensors"
        )


def _shards(groups: Sequence[TensorGroup]) -> list[list[TensorGroup]]:
    shards: list[list[TensorGroup]] = [[]]
    for group in groups:
        if shards[-1] and sum(held.num_bytes for held in shards[-1]) + group.num_bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(group)
    return shards


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    """Whole under its name or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    partial.rename(path)


def _copy_all_but_weights(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(WEIGHTS):
            shutil.copyfile(file, target / file.name)


def _write_config(source: Path, target: Path, dtype: torch.dtype) -> None:
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _replace(partial: Path, final: Path) -> None:
    old = final.with_name(f".{final.name}.{os.getpid()}.old")
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)
