"""vLLM's side of an adapter: replaced under the name that requests give. Imported inside vLLM's workers only.

vLLM's own call for it, `/v1/load_lora_adapter` with `load_inplace`, reads the file again for every batch of requests
that names the adapter (0.32: the flag stays on the request), and has no digest and no version. So the server starts
with an adapter that changes nothing, and a swap puts a new file in the place of that one. vLLM forgets its adapters
whenever a weight update has finished, and loads the file anew for the next request.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from agentrl.errors import SwapError
from agentrl.types import ADAPTER_CONFIG


class ServedAdapter:
    """The one adapter of a server: `directory` is where vLLM loads it from."""

    def __init__(self, model: torch.nn.Module, directory: Path) -> None:
        self._model: Any = model
        self._directory = directory
        self._next: tuple[Path, str] | None = None  # the file that an update brought, and its configuration

    def start(self) -> None:
        self._next = None

    def receive(self, path: Path) -> None:
        """path: a file that is gone after the call. Raises SwapError for what the model has no place for."""
        if self._next is not None:
            raise SwapError("an adapter came twice in one version")
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            self._check({name: file.get_tensor(name) for name in file.keys()}, metadata)  # noqa: SIM118 (not a dict)
        partial = self._directory / "adapter_model.partial"
        shutil.copyfile(path, partial)
        self._next = (partial, metadata[ADAPTER_CONFIG])

    def finish(self) -> None:
        """From here on vLLM loads the new one. Raises SwapError when none came."""
        if self._next is None:
            raise SwapError("the version is incomplete: no adapter")
        partial, config = self._next
        (self._directory / "adapter_config.json").write_text(config)
        partial.replace(self._directory / "adapter_model.safetensors")
        self._next = None

    def _check(self, tensors: dict[str, torch.Tensor], metadata: Mapping[str, str]) -> None:
        """vLLM would find what is wrong when it loads the file for a request, which is too late."""
        manager = self._model.lora_manager
        if ADAPTER_CONFIG not in metadata:
            raise SwapError(f"the adapter's file has no {ADAPTER_CONFIG} in its metadata")
        mapper = getattr(self._model, "hf_to_vllm_mapper", None)
        try:
            config = PEFTHelper.from_dict(json.loads(metadata[ADAPTER_CONFIG]))
            config.validate_legal(manager.lora_config)
            adapter = LoRAModel.from_lora_tensors(
                1, tensors, config, device="cpu", weights_mapper=mapper.get_rename_mapper() if mapper else None
            )
        except ValueError as error:
            raise SwapError(f"the adapter cannot be served: {error}") from error
        places = _places(manager)
        for name, weights in adapter.loras.items():
            if name.rpartition(".")[2] not in places:
                raise SwapError(f"the engine has no place for an adapter on {name}; it takes them on {sorted(places)}")
            if weights.lora_a is None or weights.lora_b is None:
                raise SwapError(f"the adapter on {name} has one matrix, it takes two")


def _places(manager: Any) -> set[str]:
    """Last names of the modules that take an adapter, as a checkpoint spells them."""
    packed = manager.packed_modules_mapping
    return {part for name in manager.supported_lora_modules for part in packed.get(name, [name])}
