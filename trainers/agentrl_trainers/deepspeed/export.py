"""Files of an exported model: which tensors a directory holds, and the rest of it, written whole or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from agentrl.errors import TrainerError
from agentrl.train.checkpoints import OWN
from agentrl_trainers.weight_groups import TensorGroup

SHARD_BYTES = 2 << 30  # of an exported file; what rank 0 holds at most while exporting, plus one group
WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".gguf", ".pt", ".pth")


def check_names(ours: Set[str], tied: Set[str], source: Path) -> None:
    """Raise TrainerError unless `ours`, with or without `tied`, are the tensor names of the safetensors in `source`."""
    theirs = names_in(source)
    if theirs - tied != ours:
        odd = sorted((theirs - tied) ^ ours)[:4]
        raise TrainerError(
            f"{source} spells its tensors differently from the loaded model, first: {', '.join(odd)}; "
            "re-save it with transformers' save_pretrained as safetensors"
        )


def names_in(source: Path) -> set[str]:
    """The names of all tensors in the directory's safetensors files."""
    names: set[str] = set()
    for file in source.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= set(opened.keys())
    return names


def shards_of(groups: Sequence[TensorGroup]) -> list[list[TensorGroup]]:
    """The groups of each file."""
    shards: list[list[TensorGroup]] = [[]]
    for group in groups:
        if shards[-1] and sum(held.num_bytes for held in shards[-1]) + group.num_bytes > SHARD_BYTES:
            shards.append([])
        shards[-1].append(group)
    return shards


def save(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Whole under its name or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    save_file(tensors, partial, metadata={"format": "pt", **(metadata or {})})
    partial.rename(path)


def copy_all_but_weights(source: Path, target: Path) -> None:
    """What is beside a model's weights, where `source` is a checkpoint of a run without what describes that one."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.endswith(WEIGHTS) and file.name not in OWN:
            shutil.copyfile(file, target / file.name)


def write_config(source: Path, target: Path, dtype: torch.dtype, **changes: Any) -> None:
    """The model's config.json with the dtype of the weights, and `changes`."""
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    config |= {"dtype": str(dtype).removeprefix("torch."), **changes}
    (target / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def replace(partial: Path, final: Path, suffix: str) -> None:
    """`partial` takes the name of `final`; what had it is gone afterwards. suffix: of a name that nobody else uses."""
    old = final.with_name(f".{final.name}.{suffix}.old")
    if final.exists():
        final.rename(old)
    partial.rename(final)
    shutil.rmtree(old, ignore_errors=True)
