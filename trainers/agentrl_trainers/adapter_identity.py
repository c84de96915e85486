"""What saved adapters belong to. Their weights do not say it: alpha and the base model may differ in equal shapes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from agentrl.digest import digest_of_weights
from agentrl_trainers.settings.adapter import LoraConfig

SETTINGS = ("rank", "alpha", "targets")


def adapter_identity(config: LoraConfig, model: Path) -> dict[str, Any] | None:
    """JSON: `SETTINGS`, and as "base" the digests of the files of weights in `model`. None where there is no adapter.

    The files are read once a process.
    """
    if not config.rank:
        return None
    return {key: getattr(config, key) for key in SETTINGS} | {"base": _digests(model)}


def other_adapter(saved: dict[str, Any] | None, ours: dict[str, Any] | None) -> str | None:
    """How the saved adapters differ from ours, and what to do; None where they do not."""
    if saved == ours:
        return None
    if saved is None or ours is None:
        names = {False: "adapters", True: "whole weights"}
        return (
            f"holds {names[saved is None]}, the trainer trains {names[ours is None]}; set trainer.lora.rank as it was"
        )
    for key in SETTINGS:
        if saved.get(key) != ours[key]:
            return (
                f"holds adapters of lora.{key} = {saved.get(key)!r}, the trainer has {ours[key]!r}; "
                f"set trainer.lora.{key} to the first"
            )
    return "holds adapters of another base model; start from the model that the run began with"


@cache
def _digests(model: Path) -> list[str]:
    return [digest_of_weights(file) for file in sorted(model.glob("*.safetensors"))]
