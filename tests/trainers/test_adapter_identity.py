"""Adapters are taken up only beside the weights and with the scale that they were trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from trainer_builders import save_tiny_model

from agentrl_trainers.adapter_identity import adapter_identity, other_adapter
from agentrl_trainers.settings.adapter import LoraConfig


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    seeds = {"base": 0, "the same elsewhere": 0, "other": 1}
    return {name: save_tiny_model(root / name, seed=seed) for name, seed in seeds.items()}


def identity(model: Path, **config: Any) -> dict[str, Any] | None:
    """As it is read from a file."""
    found = adapter_identity(LoraConfig.model_validate({"rank": 4, "alpha": 6.0, **config}), model)
    loaded: dict[str, Any] | None = json.loads(json.dumps(found))
    return loaded


def test_the_same_adapter_of_the_same_weights_is_taken_wherever_they_lie(models: dict[str, Path]) -> None:
    assert other_adapter(identity(models["base"]), identity(models["the same elsewhere"])) is None
    assert other_adapter(identity(models["base"], rank=0), identity(models["other"], rank=0)) is None


@pytest.mark.parametrize(
    ("ours", "model", "said"),
    [
        ({"alpha": 12.0}, "base", "lora.alpha = 6.0, the trainer has 12.0; set trainer.lora.alpha to the first"),
        ({"rank": 8}, "base", "lora.rank = 4, the trainer has 8; set"),
        ({"targets": ["q_proj"]}, "base", "lora.targets = 'all-linear', the trainer has ['q_proj']; set"),
        ({}, "other", "adapters of another base model; start from the model that the run began with"),
        ({"rank": 0}, "base", "holds adapters, the trainer trains whole weights; set trainer.lora.rank"),
    ],
)
def test_what_differs_is_said_with_what_to_do(
    models: dict[str, Path], ours: dict[str, Any], model: str, said: str
) -> None:
    told = other_adapter(identity(models["base"]), identity(models[model], **ours))
    assert told is not None
    assert said in told


def test_whole_weights_are_no_adapter(models: dict[str, Path]) -> None:
    told = other_adapter(identity(models["base"], rank=0), identity(models["base"]))
    assert told is not None
    assert told.startswith("holds whole weights, the trainer trains adapters")
