"""What docs/trainer.md says can be set can be, and what it says is refused is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from agentrl_trainers.config import TrainerConfig

PAGE = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text()
PAIR = {"ranks": 2, "tensor_parallel": 2}
OFFLOADED = {"offload_optimizer": "cpu"}


@pytest.mark.parametrize("block", re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL))
def test_its_tables_are_valid(block: str) -> None:
    TrainerConfig.model_validate(tomllib.loads(block)["trainer"])


@pytest.mark.parametrize("named", sorted(set(re.findall(r"`((?:memory\.)?[a-z_]+)(?: =[^`]*)?`", PAGE))))
def test_the_settings_that_it_names_exist(named: str) -> None:
    fields: Any = TrainerConfig.model_fields
    elsewhere = {"adamw", "muon", "segments", "peak_memory_bytes", "skipped_updates", "offload_optimizer"}
    for part in named.split("."):
        assert part in fields or part in elsewhere
        fields = getattr(getattr(fields.get(part), "annotation", None), "model_fields", {})


@pytest.mark.parametrize(
    "values",
    [
        PAIR | {"zero_stage": 3},
        PAIR | {"ranks": 4, "sequence_parallel": 2},
        PAIR | {"critic": {"enabled": True}},
        PAIR | {"lora": {"rank": 8}},
        PAIR | {"optimizer": "muon"},
        PAIR | {"zero_stage": 1, "memory": OFFLOADED},
        {"ranks": 2, "sequence_parallel": 2, "attention": "sdpa"},
        {"optimizer": "muon", "zero_stage": 2},
        {"memory": OFFLOADED},
        {"memory": OFFLOADED | {"offload_weights": "cpu"}, "zero_stage": 2},
        {"memory": {"offload_weights": "cpu"}, "zero_stage": 3},
    ],
    ids=str,
)
def test_what_it_says_is_refused_says_what_to_set(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=r"set |needs "):
        TrainerConfig.model_validate(values)
