"""vLLM's side of a weight swap through shared memory. Imported inside vLLM's worker processes only.

The tensors go through vLLM's layerwise reload, which keeps one layer at a time beside the model, so a swap needs the
memory of one group more than the model. On a GPU each tensor is copied to the device from the shared file (`.to`); that
path is written behind the same seam and has not been run yet.

A swap that fails leaves old and new tensors mixed: the worker says so by raising, its version stays as it was, and the
engine must stay paused until a whole swap has passed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.config import VllmConfig
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from agentrl.digest import digest_of_weights
from agentrl.engine.launch import ADAPTER_DIR_VARIABLE, WEIGHTS_DIR_VARIABLE
from agentrl.engine.manifest import Manifest
from agentrl.engine.vllm_adapter import ServedAdapter
from agentrl.errors import SwapError


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: the directory comes from the environment that the server was started with."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """One `agentrl.types.WeightGroup`, or `abort` alone to end an update that cannot be finished."""

    version: int = 0
    index: int = 0
    count: int = 0
    path: str = ""
    digest: str = ""
    names: list[str] = field(default_factory=list)
    num_bytes: int = 0
    kind: str = "tensors"
    source: str = ""
    kept: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    abort: bool = False


class SharedMemoryWeights(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """The `agentrl_shm` backend. Raises SwapError for anything but the model's own tensors, each exactly once.

    A version may leave out what an earlier one of the same trainer brought. A server that was started for adapters
    takes an adapter, whole, and nothing else: the model's own tensors stay those of its checkpoint.
    """

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo
    supports_draft_weight_update = False

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._directory = Path(os.environ[WEIGHTS_DIR_VARIABLE])
        self._tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        self._expected: Manifest | None = None
        self._received: set[str] = set()
        self._kept: set[str] = set()
        self._held: dict[str, str] = {}  # name -> the trainer that brought it last
        self._adapter: ServedAdapter | None = None
        if vllm_config.lora_config is not None:
            self._adapter = ServedAdapter(model, Path(os.environ[ADAPTER_DIR_VARIABLE]))

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        self._received.clear()
        self._kept.clear()
        if self._adapter is not None:
            self._adapter.start()
            return
        if self._expected is None:
            self._expected = Manifest.of_checkpoint(Path(self.model_config.model), tied=self._tied)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        try:
            self.receive_weights(self.parse_update_info(update_info))
        except BaseException:
            self._finalize()
            raise
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        if update_info.abort:
            raise SwapError("the weight update was aborted")
        wanted = "tensors" if self._adapter is None else "adapter"
        if update_info.kind != wanted:
            raise SwapError(f"the engine was started for weights of kind {wanted!r}, got {update_info.kind!r}")
        path = self._checked_path(update_info)
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            if sorted(names) != sorted(update_info.names):
                raise SwapError(f"{path.name} holds {names[:4]}…, the group names {update_info.names[:4]}…")
            if self._adapter is not None:
                self._adapter.receive(path)
            else:
                self._load(file, names, update_info)
        self._received.update(names)

    def finish_weight_update(self) -> None:
        if self._adapter is not None:
            self._adapter.finish()
            return
        assert self._expected is not None
        self._finalize()
        self._expected.check_complete(self._received | self._kept)

    def shutdown(self) -> None:
        pass

    def _load(self, file: Any, names: list[str], info: ShmUpdateInfo) -> None:
        assert self._expected is not None
        self._expected.check_group(
            {name: (tuple(file.get_slice(name).get_shape()), file.get_slice(name).get_dtype()) for name in names},
            already=self._received,
            engine_dtype=self.model_config.dtype,
        )
        foreign = sorted(name for name in info.kept if not info.source or self._held.get(name) != info.source)
        if foreign:
            raise SwapError(
                f"the version leaves out {foreign[0]!r}, which this trainer never sent; send all tensors once"
            )
        self._kept.update(info.kept)
        self._held.update(dict.fromkeys(names, info.source))
        self.model.load_weights(self._tensors(file, names))

    def _tensors(self, file: Any, names: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for name in names:
            yield name, file.get_tensor(name).to(self.device)

    def _checked_path(self, info: ShmUpdateInfo) -> Path:
        path = Path(info.path).resolve()
        if not path.is_relative_to(self._directory):
            raise SwapError(
                f"weights are taken from {self._directory} only, got {path}; see the run's weights directory"
            )
        if not path.is_file() or path.stat().st_size != info.num_bytes:
            raise SwapError(f"{path} is not the file of {info.num_bytes} bytes that was announced")
        digest = digest_of_weights(path)
        if digest != info.digest:
            raise SwapError(f"{path} arrived with digest {digest}, announced was {info.digest}")
        return path

    def _finalize(self) -> None:
        """Puts the layers back in working order, and repacks a tied head.

        A tied head shares the embedding's tensor but computes from a packed copy (on CPUs), which a reload does not
        touch as no tensor is loaded into the head itself.
        """
        if self._adapter is not None:
            return
        finalize_layerwise_reload(self.model, self.model_config)
        if self._tied:
            for module in self.model.modules():
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)
