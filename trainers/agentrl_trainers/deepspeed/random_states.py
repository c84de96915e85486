"""The random number generators of every rank, as JSON."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import torch
import torch.distributed as dist


def capture() -> dict[str, Any]:
    """Of this process: torch (and its GPU's), Python, NumPy's global one."""
    name, keys, *rest = np.random.get_state(legacy=True)
    version, internal, gauss = random.getstate()
    return {
        "torch": _hex(torch.get_rng_state()),
        "cuda": _hex(torch.cuda.get_rng_state()) if torch.cuda.is_available() else None,
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), *rest],
    }


def restore(state: dict[str, Any]) -> None:
    """What `capture` gave, in another process too."""
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))


def gather(device: torch.device) -> list[dict[str, Any]]:
    """Every rank's state, by rank. Collective; as bytes of JSON: nothing is unpickled."""
    ours = torch.frombuffer(bytearray(json.dumps(capture()).encode()), dtype=torch.uint8)
    length = torch.tensor([len(ours)], device=device)
    dist.all_reduce(length, dist.ReduceOp.MAX)
    padded = torch.full((int(length),), ord(" "), dtype=torch.uint8, device=device)
    padded[: len(ours)] = ours.to(device)
    found = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
    dist.all_gather(found, padded)
    return [json.loads(one.cpu().numpy().tobytes()) for one in found]


def _hex(state: torch.Tensor) -> str:
    return state.cpu().numpy().tobytes().hex()


def _bytes(state: str) -> torch.Tensor:
    return torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8)
