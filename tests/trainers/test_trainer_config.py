"""The trainer's configuration refuses what cannot work and loads without torch."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from agentrl.plugins import load
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.schedule import learning_rate


def test_config_and_advantages_import_without_torch() -> None:
    code = (
        "import sys, agentrl_trainers.config, agentrl_trainers.schedule, agentrl_trainers.algorithms.grpo;"
        "import agentrl_trainers.metrics, agentrl_trainers.weight_groups, agentrl_trainers.packing;"
        "sys.exit(','.join({'torch', 'ray', 'vllm', 'deepspeed', 'transformers'} & sys.modules.keys()) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_driver_finds_the_config_by_entry_point() -> None:
    assert load("agentrl.trainer_configs", "deepspeed") is TrainerConfig


def test_an_unknown_key_is_named() -> None:
    with pytest.raises(ValidationError, match="learnin_rate"):
        TrainerConfig.model_validate({"learnin_rate": 1e-4})


@pytest.mark.parametrize(
    ("values", "fix"),
    [
        ({"dtype": "bfloat16"}, "set zero_stage = 1, 2 or 3"),
        ({"attention": "flash_attention_2"}, "set dtype = 'bfloat16'"),
    ],
)
def test_an_impossible_combination_says_its_fix(values: dict[str, object], fix: str) -> None:
    with pytest.raises(ValidationError, match=fix):
        TrainerConfig.model_validate(values)


@pytest.mark.parametrize(
    "values",
    [
        {"zero_stage": 4},
        {"ranks": 0},
        {"gradient_clip": 0.0},
        {"learning_rate": -1e-4},
        {"learning_rate": float("nan")},
        {"micro_batch_tokens": 0},
        {"betas": (0.9, 1.0)},
        {"clip_low": 1.5},
    ],
)
def test_a_value_out_of_range_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        TrainerConfig.model_validate(values)


def test_clipping_is_on_by_default_and_can_be_turned_off_in_toml() -> None:
    assert TrainerConfig().gradient_clip == 1.0
    assert TrainerConfig.model_validate({"gradient_clip": "off"}).gradient_clip is None


def test_every_field_has_a_docstring() -> None:
    assert [name for name, field in TrainerConfig.model_fields.items() if not field.description] == []


def test_the_first_update_has_a_rate_above_zero_and_the_last_the_final_fraction() -> None:
    config = TrainerConfig(learning_rate=1e-3, warmup_steps=2, decay="linear", final_lr_fraction=0.1)
    rates = [learning_rate(config, step, 4) for step in range(6)]
    # Warm-up 1/2, 2/2; then 0.1 + 0.9 * (1/2, 0); and the final rate for any update after the last.
    assert rates == pytest.approx([5e-4, 1e-3, 5.5e-4, 1e-4, 1e-4, 1e-4])


def test_cosine_is_half_way_at_half_time() -> None:
    config = TrainerConfig(learning_rate=1.0, warmup_steps=0, decay="cosine", final_lr_fraction=0.0)
    # 0.5 (1 + cos(pi k/4)): 1, 0.853553, 0.5, 0.146447, 0
    assert [learning_rate(config, step, 5) for step in range(5)] == pytest.approx(
        [1.0, 0.853553, 0.5, 0.146447, 0.0], abs=1e-6
    )


@pytest.mark.parametrize(("warmup", "total"), [(4, 4), (9, 4), (0, 1), (1, 1), (0, 0)])
@pytest.mark.parametrize("decay", ["linear", "cosine", "constant"])
def test_short_runs_and_long_warmups_neither_divide_by_zero_nor_start_at_zero(
    warmup: int, total: int, decay: str
) -> None:
    config = TrainerConfig.model_validate({"learning_rate": 1.0, "warmup_steps": warmup, "decay": decay})
    assert all(0.0 < learning_rate(config, step, total) <= 1.0 for step in range(12))
