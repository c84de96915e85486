"""The trainer's configuration refuses what cannot work and loads without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from agentrl.config import RunConfig
from agentrl.plugins import load
from agentrl.section import Section
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.schedule import learning_rate


def test_config_and_advantages_import_without_torch() -> None:
    code = (
        "import sys, agentrl_trainers.config, agentrl_trainers.schedule, agentrl_trainers.algorithms.advantages.grpo;"
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
        ({"dtype": "bfloat16"}, "zero_stage = 0 has no float32 master weights; set zero_stage = 2 or 3"),
        (
            {"dtype": "bfloat16", "zero_stage": 1},
            "zero_stage = 1 has no float32 sum of gradients; set zero_stage = 2 or 3",
        ),
        (
            {"critic": {"enabled": True}, "teacher": {"model": "a/model"}},
            "set teacher.replace = false, or critic.enabled = false",
        ),
        (
            {"kl": {"coefficient": 0.1, "where": "reward", "estimator": "k1"}, "teacher": {"model": "a/model"}},
            "set kl.where = 'loss', or teacher.replace = false",
        ),
        ({"kl": {"target": 0.1}}, "set kl.coefficient above 0"),
        ({"attention": "flash_attention_2"}, "set dtype = 'bfloat16'"),
        ({"tensor_parallel": 2, "ranks": 2, "zero_stage": 3}, "set tensor_parallel = 1, or zero_stage = 0, 1 or 2"),
        ({"tensor_parallel": 2, "ranks": 4, "sequence_parallel": 2}, "set one of them to 1"),
        ({"tensor_parallel": 2, "ranks": 2, "critic": {"enabled": True}}, "set critic.enabled = false"),
        ({"tensor_parallel": 2, "ranks": 2, "optimizer": "muon"}, "Muon needs whole matrices"),
        (
            {"tensor_parallel": 2, "ranks": 2, "zero_stage": 1, "memory": {"offload_optimizer": "cpu"}},
            "set memory.offload_optimizer = 'none'",
        ),
        ({"tensor_parallel": 2, "ranks": 3}, "no multiple of tensor_parallel \\* sequence_parallel = 2"),
        ({"sequence_parallel": 2, "ranks": 3}, "no multiple of tensor_parallel \\* sequence_parallel = 2"),
        ({"sequence_parallel": 2, "ranks": 2, "attention": "sdpa"}, "set attention = 'segments'"),
        ({"optimizer": "muon", "zero_stage": 1}, "set zero_stage = 0, or optimizer = 'adamw'"),
        ({"memory": {"offload_optimizer": "cpu"}}, "offload_optimizer needs zero_stage = 1, 2 or 3"),
        ({"memory": {"offload_weights": "cpu"}, "zero_stage": 2}, "offload_weights needs zero_stage = 3"),
        ({"memory": {"offload_weights": "cpu"}, "zero_stage": 3}, "set memory.offload_optimizer = 'cpu' too"),
        ({"lora": {"quantize": "nf4", "publish": "merged"}}, "set rank above 0 to train adapters"),
        ({"lora": {"rank": 8, "quantize": "nf4"}}, "set publish = 'merged'"),
        (
            {"lora": {"rank": 8, "quantize": "nf4", "publish": "merged"}},
            "set zero_stage = 2 and dtype = 'bfloat16'",
        ),
        ({"lora": {"rank": 8, "targets": []}}, "no layer would be trained"),
        ({"lora": {"rank": 8}, "ema": 0.99}, "lora.rank trains adapters; set one of them"),
        ({"lora": {"rank": 8}, "tensor_parallel": 2, "ranks": 2}, "set tensor_parallel = 1"),
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
        {"loss": {"clip_low": 1.5}},
    ],
)
def test_a_value_out_of_range_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(values))):
        TrainerConfig.model_validate(values)


def test_clipping_is_on_by_default_and_can_be_turned_off_in_toml() -> None:
    assert TrainerConfig().gradient_clip == 1.0
    assert TrainerConfig.model_validate({"gradient_clip": "off"}).gradient_clip is None


UNREAD = [
    ({"correction": {"level": "sequence", "high": 3.0}}, "level = 'sequence', high = 3.0: .* set correction.mode"),
    ({"correction": {"preset": "none", "low": 0.5}}, "low = 0.5: .* set correction.mode"),
    (
        {"kl": {"where": "reward", "estimator": "k1"}},
        "estimator = 'k1', where = 'reward': .* set kl.coefficient above 0",
    ),
    ({"kl": {"reference": "a/model"}}, "reference = 'a/model': .* set kl.coefficient above 0"),
    ({"critic": {"gamma": 0.9, "value_clip": "off"}}, "gamma = 0.9, value_clip = None: .* set critic.enabled = true"),
    ({"teacher": {"replace": False}}, "replace = False: .* set teacher.model"),
    ({"teacher": {"coefficient": 0.5}}, "coefficient = 0.5: .* set teacher.model"),
]


@pytest.mark.parametrize(("values", "message"), UNREAD)
def test_a_key_that_would_not_be_read_is_refused_by_name(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainerConfig.model_validate(values)


def test_unread_keys_at_their_defaults_are_taken_as_a_resolved_configuration_gives_them() -> None:
    assert TrainerConfig.model_validate(TrainerConfig().model_dump(mode="json")) == TrainerConfig()


def test_a_correction_preset_can_be_turned_off_beside_its_own_bounds() -> None:
    config = TrainerConfig.model_validate({"correction": {"preset": "icepop", "mode": "off"}})
    assert TrainerConfig.model_validate(config.model_dump(mode="json")) == config


def is_table(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def test_every_field_has_a_docstring() -> None:
    tables = [TrainerConfig, *(field.annotation for field in TrainerConfig.model_fields.values() if is_table(field))]
    for table in tables:
        assert [key for key, field in table.model_fields.items() if not (field.description or is_table(field))] == []


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


CRITIC = {"critic": {"enabled": True}}
TEACHER = {"teacher": {"model": "a/model"}}


@pytest.mark.parametrize(
    ("table", "advantage", "fix"),
    [
        ({}, "gae", "set both or neither"),
        (CRITIC, "grpo", "set both or neither"),
        ({}, "distillation", "set trainer.teacher.model"),
        (TEACHER, "grpo", 'set algorithm.advantage = "distillation", or teacher.replace = false'),
        ({"critic": {"enabled": True, "warmup_steps": 40}}, "gae", "leaves no step of loop.steps = 40"),
    ],
)
def test_a_trainer_that_does_not_fit_the_run_says_its_fix(table: dict[str, object], advantage: str, fix: str) -> None:
    run = {"name": "a", "environment": {"id": "b:C"}, "algorithm": {"advantage": advantage}, "trainer": table}
    with pytest.raises(ValidationError, match=fix):
        RunConfig.model_validate(run)


@pytest.mark.parametrize(
    ("table", "advantage"),
    [
        ({}, "grpo"),
        (CRITIC, "gae"),
        (TEACHER, "distillation"),
        ({"teacher": {"model": "a/model", "replace": False}}, "grpo"),
        (CRITIC | {"teacher": {"model": "a/model", "replace": False}}, "gae"),
    ],
)
def test_a_trainer_that_fits_the_run_is_taken(table: dict[str, object], advantage: str) -> None:
    run = {"name": "a", "environment": {"id": "b:C"}, "algorithm": {"advantage": advantage}, "trainer": table}
    assert RunConfig.model_validate(run).algorithm.advantage == advantage


def test_an_optimizer_that_nobody_registered_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValidationError, match=r"no agentrl.optimizers is called 'adam'; known: adamw, muon, sgd"):
        TrainerConfig.model_validate({"optimizer": "adam"})


def test_an_optimizer_of_the_users_own_is_found_from_any_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert TrainerConfig.model_validate({"optimizer": "mine.py:make"}).optimizer == f"{tmp_path}/mine.py:make"
