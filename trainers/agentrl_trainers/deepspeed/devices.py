"""Which device of its machine a rank takes: ranks that see the same devices take them in turn."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError


class Seen(NamedTuple):
    """What a rank sees. `visible` is its CUDA_VISIBLE_DEVICES, empty where all of the machine's are."""

    host: str
    visible: str
    devices: int


def local_rank(seen: Sequence[Seen], rank: int) -> int:
    """Index among the devices that `rank` sees; `seen` is what each rank sees, in rank order.

    Raises TrainerError, on every rank alike, when more ranks see the same devices than there are.
    """
    for place, ranks in Counter(seen).items():
        if ranks > place.devices:
            visible = f" (CUDA_VISIBLE_DEVICES={place.visible})" if place.visible else ""
            raise TrainerError(
                f"{ranks} trainer ranks on {place.host} see the same {place.devices} GPUs{visible}, and each needs its "
                "own; set trainer.ranks lower, make more GPUs visible, or give each rank its own CUDA_VISIBLE_DEVICES"
            )
    return sum(other == seen[rank] for other in seen[:rank])


def exchange(store: dist.Store, rank: int, world_size: int, mine: Seen) -> list[Seen]:
    """What each rank sees, in rank order. All ranks together; a rank that never comes is the store's timeout."""
    store.set(f"seen/{rank}", "\n".join(map(str, mine)))
    texts = [store.get(f"seen/{other}").decode() for other in range(world_size)]
    parts = [text.split("\n") for text in texts]
    return [Seen(host, visible, int(devices)) for host, visible, devices in parts]


def here() -> Seen:
    return Seen(socket.gethostname(), os.environ.get("CUDA_VISIBLE_DEVICES", ""), torch.cuda.device_count())
