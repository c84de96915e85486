"""CUDA IPC handles as JSON. vLLM would pickle them over HTTP; nothing here is unpickled from a socket.

A handle is the tuple that `torch.multiprocessing.reductions.reduce_tensor` gives for a CUDA tensor and
`rebuild_cuda_tensor` takes: 15 values, of which two are classes, one a dtype and three bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

Handles = dict[str, tuple[Any, ...]]  # by the physical GPU's UUID

FIELDS = (
    "size",
    "stride",
    "offset",
    "dtype",
    "device",
    "memory",
    "storage_bytes",
    "storage_offset",
    "requires_grad",
    "counter",
    "counter_offset",
    "event",
    "event_sync",
)
BYTES = ("memory", "counter", "event")


def to_json(handles: Handles) -> dict[str, dict[str, Any]]:
    """By GPU, the tuple's values by name; bytes in hex."""
    return {gpu: _named(handle) for gpu, handle in handles.items()}


def from_json(data: Mapping[str, Mapping[str, Any]]) -> Handles:
    """Raises ValueError for anything but what `to_json` made."""
    return {gpu: _handle(values) for gpu, values in data.items()}


def _named(handle: tuple[Any, ...]) -> dict[str, Any]:
    _class, size, stride, offset, _storage, *rest = handle
    values = dict(zip(FIELDS, (list(size), list(stride), offset, *rest), strict=True))
    values["dtype"] = str(values["dtype"]).removeprefix("torch.")
    return values | {name: bytes(values[name]).hex() for name in BYTES}


def _handle(values: Mapping[str, Any]) -> tuple[Any, ...]:
    if set(values) != set(FIELDS):
        raise ValueError(f"a CUDA IPC handle has {sorted(FIELDS)}, got {sorted(values)}")
    dtype = getattr(torch, str(values["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{values['dtype']!r} is no dtype of torch")
    read = dict(values) | {name: bytes.fromhex(values[name]) for name in BYTES} | {"dtype": dtype}
    size, stride, offset, *rest = (read[name] for name in FIELDS)
    return (torch.Tensor, torch.Size(size), tuple(stride), offset, torch.storage.TypedStorage, *rest)
