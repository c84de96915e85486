"""Cuts a model's tensors into the groups that are gathered, published and exported one at a time. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

LAYER = re.compile(r"^(.*\.(?:layers|h|blocks)\.\d+)\.")
PART = re.compile(r"^(.*\.(?:layers|h|blocks)\.\d+\.[^.]+)\.")


class TensorGroup(Struct, frozen=True):
    """Tensors that travel together. `names` are checkpoint names, `num_bytes` their sum."""

    names: tuple[str, ...]
    num_bytes: int


def natural_group(name: str) -> str:
    """The layer that a tensor belongs to, or the tensor's own module outside the layers."""
    found = LAYER.match(name)
    return found.group(1) if found else name.rpartition(".")[0]


def layer_part(name: str) -> str:
    """The part of a layer (its attention, its MLP, one norm) that a tensor belongs to, or its own module outside.

    An engine may hold several matrices of a part as one (query, key and value; gate and up; all experts), and then
    needs all of them to load any.
    """
    found = PART.match(name)
    return found.group(1) if found else name.rpartition(".")[0]


def changing(trained: Mapping[str, bool]) -> set[str]:
    """Which of the tensors (name -> whether it is trained) a version has to bring: all of a part that changes."""
    parts = {layer_part(name) for name, is_trained in trained.items() if is_trained}
    return {name for name in trained if layer_part(name) in parts}


def weight_groups(num_bytes: Mapping[str, int], *, min_bytes: int) -> list[TensorGroup]:
    """Groups in the order of `num_bytes` (name -> bytes): whole layers, joined until a group has `min_bytes`.

    What is left at the end joins the last group, so that none is smaller, unless all tensors together are.
    """
    groups: list[list[str]] = []
    open_names: list[str] = []
    open_bytes, last_key = 0, None
    for name, size in num_bytes.items():
        key = natural_group(name)
        if open_names and key != last_key and open_bytes >= min_bytes:
            groups.append(open_names)
            open_names, open_bytes = [], 0
        open_names.append(name)
        open_bytes += size
        last_key = key
    if open_names and open_bytes < min_bytes and groups:
        groups[-1] += open_names
    elif open_names:
        groups.append(open_names)
    return [TensorGroup(tuple(names), sum(num_bytes[name] for name in names)) for names in groups]
