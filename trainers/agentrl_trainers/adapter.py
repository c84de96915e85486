"""Low-rank adapters (LoRA, Hu et al., arXiv:2106.09685) on the policy's linear layers, by peft.

A layer of weight W `[out, in]` computes `W x + (alpha / rank) B A x`, with A `[rank, in]`, B `[out, rank]`, W frozen.
B begins at 0, so version 0 is the model as it was loaded. There is no dropout: each pass would have other logprobs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from agentrl.errors import TrainerError
from agentrl_trainers.checkpoint_tensors import LowRank
from agentrl_trainers.settings.adapter import LoraConfig

NAME = "default"  # peft's, of the one adapter
PREFIX = "base_model.model."  # of a tensor's name in peft's files
ALL_LINEAR = "all-linear"


class Adapter:
    """The adapters of one model, put in when it is made. Only they can be trained then."""

    def __init__(self, lm: PreTrainedModel, config: LoraConfig, *, seed: int) -> None:
        """Equal on every rank, whatever torch drew before. Raises TrainerError for targets that cannot have one."""
        import peft  # a second of imports that runs without adapters need not wait for
        from peft.tuners.lora import LoraLayer

        self._asked = config.targets
        self._config = peft.LoraConfig(
            r=config.rank,
            lora_alpha=config.alpha,  # type: ignore[arg-type]  # peft computes with it as with any number
            target_modules=config.targets,
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                peft.inject_adapter_in_model(self._config, lm, NAME)
            except ValueError as error:
                raise TrainerError(
                    f"trainer.lora.targets = {config.targets!r} fits no layer of {lm.config.model_type}: {error}"
                ) from error
        self._layers: dict[str, Any] = {
            name: layer for name, layer in lm.named_modules() if isinstance(layer, LoraLayer)
        }
        _check_layers(self._layers, lm, config)

    @property
    def low_rank(self) -> dict[str, LowRank]:
        """By the name of the model's parameter that it is added to."""
        return {
            f"{name}.base_layer.weight": LowRank(
                layer.lora_A[NAME].weight,
                layer.lora_B[NAME].weight,
                float(layer.scaling[NAME]),
                bool(getattr(layer, "fan_in_fan_out", False)),
            )
            for name, layer in self._layers.items()
        }

    @property
    def tensors(self) -> dict[str, torch.nn.Parameter]:
        """By the name that peft's file gives them."""
        named = {}
        for name, layer in self._layers.items():
            named[f"{PREFIX}{name}.lora_A.weight"] = layer.lora_A[NAME].weight
            named[f"{PREFIX}{name}.lora_B.weight"] = layer.lora_B[NAME].weight
        return named

    def config(self) -> dict[str, Any]:
        """What `adapter_config.json` says to peft and to vLLM."""
        one_by_one = isinstance(self._asked, str) and self._asked != ALL_LINEAR  # an expression may pick single layers
        names = {name if one_by_one else name.rpartition(".")[2] for name in self._layers}
        values: dict[str, Any] = self._config.to_dict()
        return values | {"target_modules": sorted(names), "inference_mode": True}

    def write_config(self, directory: Path, base: Path) -> None:
        """`adapter_config.json`; base: the weights that the adapter belongs to."""
        type(self._config)(**self.config() | {"base_model_name_or_path": str(base)}).save_pretrained(str(directory))


def _check_layers(layers: dict[str, Any], lm: PreTrainedModel, config: LoraConfig) -> None:
    """The output head's weights are read by `LogprobHead` itself; an adapter on it would have no effect."""
    head = lm.get_output_embeddings()
    for name, layer in layers.items():
        base = layer.get_base_layer()
        if layer is head or base is head:
            raise TrainerError(
                f"trainer.lora.targets = {config.targets!r} names the output head {name}, which takes no adapter; "
                f"leave it out, or set {ALL_LINEAR!r}"
            )
        if NAME not in layer.lora_A:
            raise TrainerError(
                f"trainer.lora.targets = {config.targets!r} names {name}, a {type(base).__name__}; "
                "adapters are made for linear layers only"
            )


def quantization(config: LoraConfig, dtype: torch.dtype) -> BitsAndBytesConfig | None:
    """How the frozen weights are held (QLoRA, Dettmers et al., arXiv:2305.14314). Raises TrainerError without a GPU."""
    if config.quantize == "none":
        return None
    if not torch.cuda.is_available():
        raise TrainerError(
            f"trainer.lora.quantize = {config.quantize!r} needs a CUDA GPU, and torch finds none; set 'none'"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise TrainerError(
            f"trainer.lora.quantize = {config.quantize!r} needs bitsandbytes, which is not installed; "
            "pip install bitsandbytes, or set 'none'"
        )
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=config.quantize,
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=True,
    )
