"""The ranks' process group: made before DeepSpeed looks for one, so that it guesses nothing from the environment."""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError


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
    """Make the default process group (gloo on CPU, nccl on GPU) and hand it to DeepSpeed. All ranks together."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.setdefault("LOCAL_RANK", "0")  # one process sees one device: Ray gives each actor its own
    if not torch.cuda.is_available():
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


def leave() -> None:
    """Destroy the process group if there is one, DeepSpeed's handle on it included."""
    if dist.is_initialized():
        import deepspeed.comm.comm

        dist.destroy_process_group()
        deepspeed.comm.comm.cdb = None


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
