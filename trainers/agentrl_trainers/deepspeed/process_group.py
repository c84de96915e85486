"""The ranks' process group: made before DeepSpeed looks for one, so that it guesses nothing from the environment."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed import devices
from agentrl_trainers.token_share import TokenShare


def open_store(rank: int, world_size: int, address: str, port: int, timeout_s: float) -> dist.Store:
    """Where the ranks meet. Rank 0 serves it (`port` 0 picks a free one); a lone rank needs no port at all.

    Raises TrainerError naming the address when it cannot be bound or reached in time.
    """
    if world_size == 1:
        return dist.HashStore()
    try:
        return dist.TCPStore(address, port, world_size, rank == 0, timedelta(seconds=timeout_s), wait_for_workers=False)
    except (RuntimeError, dist.DistError) as error:
        verb = "bind" if rank == 0 else "reach"
        raise TrainerError(
            f"trainer rank {rank} of {world_size} cannot {verb} {address}:{port}; "
            f"free the port or give another: {error}"
        ) from error


def join(store: dist.Store, rank: int, world_size: int, address: str, timeout_s: float) -> None:
    """Make the default process group (gloo on CPU, nccl on GPU) and hand it to DeepSpeed. All ranks together.

    Raises TrainerError when ranks would share a GPU.
    """
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    if torch.cuda.is_available():
        if "LOCAL_RANK" not in os.environ:  # Ray's actors ask for no GPU, so they may all see all of them
            seen = devices.exchange(store, rank, world_size, devices.here())
            os.environ["LOCAL_RANK"] = str(devices.local_rank(seen, rank))
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    else:
        os.environ.setdefault("LOCAL_RANK", "0")
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if _is_loopback(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else it compiles C++ for a minute, for one machine
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)


@dataclass(frozen=True)
class Split:
    """Which rows this rank passes, `index` of `count` shares of them, and with whom."""

    index: int
    count: int
    across: Any  # ProcessGroup of one rank of each share: sums over it are sums over all rows; None is all ranks
    tokens: TokenShare | None  # the ranks of the same share, where they are several


def split(ranks_each: int, *, share_tokens: bool = True) -> Split:
    """Consecutive ranks, `ranks_each` at a time, pass the same rows. Collective when it is first called.

    share_tokens: each a slice of their tokens; otherwise each all of them.
    """
    world, rank = dist.get_world_size(), dist.get_rank()
    if ranks_each == 1:
        return Split(rank, world, None, None)
    if ranks_each not in _splits:
        together = [list(range(start, start + ranks_each)) for start in range(0, world, ranks_each)]
        across = [list(range(start, world, ranks_each)) for start in range(ranks_each)]
        of_rows, _ = dist.new_subgroups_by_enumeration(together)
        of_places, _ = dist.new_subgroups_by_enumeration(across)
        share = TokenShare(of_rows, rank % ranks_each, ranks_each)
        _splits[ranks_each] = Split(rank // ranks_each, world // ranks_each, of_places, share)
    found = _splits[ranks_each]
    return found if share_tokens else replace(found, tokens=None)


_splits: dict[int, Split] = {}


def leave() -> None:
    """Destroy the process group if there is one, DeepSpeed's handle on it included."""
    _splits.clear()
    if dist.is_initialized():
        import deepspeed.comm.comm

        dist.destroy_process_group()
        deepspeed.comm.comm.cdb = None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
