"""What a rank writes for the engines: one group of tensors, or the adapter, as a safetensors file or as its bytes."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import safetensors.torch
import torch
import torch.distributed as dist

from agentrl.digest import digest_of_weights
from agentrl.errors import TrainerError
from agentrl.types import ADAPTER_CONFIG, WeightGroup
from agentrl_trainers.deepspeed.export import save
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.weight_groups import TensorGroup

Packed = tuple[WeightGroup, np.ndarray[Any, np.dtype[np.uint8]]]


class GroupWriter:
    """All ranks call every method together; only rank 0 has a result, the others None.

    as_adapter: a version is one group, the adapter's tensors, for engines that hold the weights they are added to.
    """

    def __init__(self, source: WeightSource, *, as_adapter: bool = False) -> None:
        self._source, self._as_adapter = source, as_adapter
        self._id = secrets.token_hex(8)  # by which engines know whose tensors they keep

    def plan(self, *, changed_only: bool) -> list[TensorGroup]:
        """The groups of a version. changed_only: without tensors that are frozen, which the engines have already."""
        if self._as_adapter:
            assert self._source.adapter is not None
            named = self._source.adapter.tensors
            size = sum(int(getattr(one, "ds_numel", one.numel())) * one.element_size() for one in named.values())
            return [TensorGroup(tuple(named), size)]
        return self._source.changed if changed_only else self._source.groups

    def write(self, version: int, index: int, directory: str | Path, *, changed_only: bool) -> WeightGroup | None:
        """Group `index` of `plan` as a file in `directory` (shared memory), whole under its name or not there."""
        path = self._path(version, index, directory)
        started = time.perf_counter()
        with self._lent(index, changed_only) as tensors:
            gathered = time.perf_counter()
            if tensors:
                save(tensors, path, self._metadata())
        if dist.get_rank():
            return None
        group = self._described(version, index, path, changed_only, digest_of_weights(path), path.stat().st_size)
        return self._timed(group, started, gathered)

    def pack(self, version: int, index: int, directory: str | Path, *, changed_only: bool) -> Packed | None:
        """The same as bytes, for others to put there."""
        path = self._path(version, index, directory)
        started = time.perf_counter()
        with self._lent(index, changed_only) as tensors:
            gathered = time.perf_counter()
            data: bytes = safetensors.torch.save(tensors, {"format": "pt", **self._metadata()}) if tensors else b""
        if dist.get_rank():
            return None
        group = self._described(version, index, path, changed_only, digest_of_weights(data), len(data))
        return self._timed(group, started, gathered), np.frombuffer(data, np.uint8)

    def _lent(self, index: int, changed_only: bool) -> AbstractContextManager[dict[str, torch.Tensor]]:
        groups = self.plan(changed_only=changed_only)
        if not 0 <= index < len(groups):
            raise TrainerError(f"weight group {index} was asked for; there are {len(groups)}, from 0")
        return self._source.lent_adapter() if self._as_adapter else self._source.lent(groups[index].names)

    def _described(
        self, version: int, index: int, path: Path, changed_only: bool, digest: str, num_bytes: int
    ) -> WeightGroup:
        groups = self.plan(changed_only=changed_only)
        says_kept = changed_only and index == 0 and not self._as_adapter
        return WeightGroup(
            version=version,
            index=index,
            count=len(groups),
            path=str(path),
            digest=digest,
            names=groups[index].names,
            num_bytes=num_bytes,
            kind="adapter" if self._as_adapter else "tensors",
            source=self._id,
            kept=self._source.kept if says_kept else (),
        )

    def _metadata(self) -> dict[str, str]:
        """An adapter's file says how it is added."""
        if not self._as_adapter:
            return {}
        assert self._source.adapter is not None
        return {ADAPTER_CONFIG: json.dumps(self._source.adapter.config())}

    @staticmethod
    def _path(version: int, index: int, directory: str | Path) -> Path:
        return Path(directory) / f"v{version:06d}-g{index:04d}.safetensors"

    @staticmethod
    def _timed(group: WeightGroup, started: float, gathered: float) -> WeightGroup:
        seconds = {"gather": gathered - started, "write": time.perf_counter() - gathered}
        return msgspec.structs.replace(group, seconds=seconds)
