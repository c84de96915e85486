"""CUDA IPC handles cross the wire as JSON, never pickled, and arrive as torch takes them."""

from __future__ import annotations

import json

import pytest
import torch

from agentrl.engine import ipc_handles

HANDLE = (
    torch.Tensor,
    torch.Size([3, 4]),
    (4, 1),
    2,
    torch.storage.TypedStorage,
    torch.uint8,
    0,
    b"memory handle \x00\xff",
    4096,
    512,
    False,
    b"counter \x01",
    7,
    b"event \x02",
    True,
)
"""As `torch.multiprocessing.reductions.reduce_tensor` makes it of a CUDA tensor: 15 values."""


def test_they_arrive_as_they_were_through_json() -> None:
    handles = {"GPU-1": HANDLE, "GPU-2": (*HANDLE[:3], 9, *HANDLE[4:])}
    assert ipc_handles.from_json(json.loads(json.dumps(ipc_handles.to_json(handles)))) == handles


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"dtype": "load"}, "'load' is no dtype of torch"),
        ({"size": None, "more": 1}, r"a CUDA IPC handle has \['counter', .*got"),
        ({"memory": "xyz"}, "non-hexadecimal"),
    ],
)
def test_anything_else_is_refused(spoil: dict[str, object], message: str) -> None:
    data = ipc_handles.to_json({"GPU-1": HANDLE})
    data["GPU-1"] |= spoil
    with pytest.raises(ValueError, match=message):
        ipc_handles.from_json(data)
