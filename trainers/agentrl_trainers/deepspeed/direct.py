"""Weights from the ranks' GPUs into those of the engines, by vLLM's own trainer engines. Not run: they need GPUs.

vLLM's engines drive a whole update at one server. Here the driver opens, finishes and names the update at every engine
(`agentrl.engine.swap`), and what is left to them is the data: `EngineUpdates` passes on `update_weights` alone.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from vllm.distributed.weight_transfer.base import ParamMeta
from vllm.distributed.weight_transfer.base import WeightSource as VllmSource
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed.engine_updates import EngineUpdates
from agentrl_trainers.deepspeed.weights import WeightSource

CHUNK_BYTES = 512 << 20  # that a GPU holds twice beside the weights while they go out


class ZeroSource(VllmSource):
    """The policy's tensors as vLLM's engines iterate over them, gathered a group at a time, on every rank alike."""

    def __init__(self, weights: WeightSource, device: torch.device) -> None:
        self._weights, self._device = weights, device
        self.changed_only = False

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, dtype, shape) for name, dtype, shape in self._weights.metadata(self._groups())]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for group in self._groups():
            yield from self._weights.gather(group.names, everywhere=True, device=self._device).items()

    @property
    def num_bytes(self) -> int:
        return sum(group.num_bytes for group in self._groups())

    def _groups(self) -> Sequence[Any]:
        return self._weights.changed if self.changed_only else self._weights.groups


class DirectSender:
    """All ranks make one and call `send` together, while every engine is in an update."""

    def __init__(
        self,
        weights: WeightSource,
        device: torch.device,
        transfer: str,
        urls: Sequence[str],
        *,
        timeout_s: float,
        key: str | None = None,
    ) -> None:
        """transfer: `nccl` or `ipc`. key: opens the engines.

        Raises TrainerError without CUDA, or when an engine does not take part.
        """
        if device.type != "cuda":
            raise TrainerError(
                f'engine.weight_transfer = "{transfer}" goes from GPU to GPU, and the trainer is on {device}; '
                'set engine.weight_transfer = "shared_memory"'
            )
        self._source = ZeroSource(weights, device)
        self._client = EngineUpdates(urls, timeout_s=timeout_s, key=key)
        self._engine = WeightTransferTrainerFactory.trainer_init(
            self._init_info(transfer, urls[0]), client=self._client, source=self._source
        )

    def send(self, *, changed_only: bool) -> dict[str, float]:
        """Seconds and bytes."""
        self._source.changed_only = changed_only
        started = time.perf_counter()
        self._engine.send_weights()
        return {"send": time.perf_counter() - started, "bytes": float(self._source.num_bytes)}

    def close(self) -> None:
        self._engine.shutdown()
        self._client.close()

    def _init_info(self, transfer: str, url: str) -> Any:
        rank = dist.get_rank()
        if transfer == "ipc":
            return IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=CHUNK_BYTES)
        engines = self._client.ask_world_sizes() if rank == 0 else 0  # the other ranks take no part in the group
        return NCCLTrainerInitInfo(
            master_address=address_towards(url), master_port=_free_port(), world_size=1 + engines, rank=rank
        )


def address_towards(url: str) -> str:
    """The address of this machine by which the server at `url` reaches it. Sends nothing."""
    parts = urlsplit(url)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((parts.hostname, parts.port or 80))
        return str(sock.getsockname()[0])


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return int(sock.getsockname()[1])
