"""An adapter without effect, which a server has from its start, until a swap puts another in its place."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from agentrl.engine.manifest import Manifest
from agentrl.errors import EngineError

PREFIX = "base_model.model."  # of a tensor's name in peft's files


def write_empty_adapter(path: Path, model: Path) -> Path:
    """The directory `path`, in peft's form: zeros on one matrix, as vLLM takes none that is on no layer.

    Raises EngineError when `model` has no matrix in a layer.
    """
    name, (outputs, inputs) = _a_matrix(model)
    module = PREFIX + name.removesuffix(".weight")
    halves = {"lora_A": (1, inputs), "lora_B": (outputs, 1)}
    path.mkdir(parents=True, exist_ok=True)
    save_file(
        {f"{module}.{half}.weight": np.zeros(shape, np.float32) for half, shape in halves.items()},
        path / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": [module.rpartition(".")[2]]}
    (path / "adapter_config.json").write_text(json.dumps(config) + "\n")
    return path


def _a_matrix(model: Path) -> tuple[str, tuple[int, int]]:
    """Name and shape of a matrix of an attention layer, or of any layer."""
    matrices = {
        name: shape
        for name, (shape, _) in Manifest.of_checkpoint(model, tied=False).tensors.items()
        if len(shape) == 2 and name.endswith(".weight") and ".layers." in name
    }
    for name, (outputs, inputs) in sorted(matrices.items(), key=lambda item: ".self_attn." not in item[0]):
        return name, (outputs, inputs)
    raise EngineError(f"{model} has no matrix in a layer, which an adapter could be added to")
