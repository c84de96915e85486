"""A checkpoint that does not fit is refused by what differs, with what to do, before anything was changed."""

from __future__ import annotations

import re

import pytest
from checkpoint_refusals import refusals
from trainer_builders import save_tiny_model
from trainer_ranks import run_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    model_dir = save_tiny_model(tmp_path_factory.mktemp("model"))
    return run_ranks(refusals, 1, model_dir, tmp_path_factory.mktemp("out"), forked=True)[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no state", r"CheckpointError: .*nothing holds no trainer state \(state.json is not there\)"),
        ("other optimizer", r"CheckpointError: .*states of optimizer 'adamw', the trainer has 'sgd'; set trainer.opt"),
        ("no critic", r"CheckpointError: .*holds \['policy'\], the trainer trains \['critic', 'policy'\]; give it the"),
        ("other model", r"CheckpointError: .*another model: lm.lm_head.weight has shape None there and \(40, 32\) in"),
        (
            "other alpha",
            r"CheckpointError: .*lora.alpha = 32.0, the trainer has 2.0; set trainer.lora.alpha to the first",
        ),
        ("other base", r"CheckpointError: .*adapted holds adapters of another base model; start from the model that"),
        ("same adapter", r"nothing"),
        ("odd state", r"TrainerError: the optimizer's state 'rows' of lm.model.* has another size than the weight"),
        ("other format", r"CheckpointError: .*state.json is of format 2, this agentrl reads 1"),
        ("broken file", r"CheckpointError: .*policy-00001.safetensors cannot be read .*; restore it, or take another"),
    ],
)
def test_it_is_refused_by_what_differs(said: dict[str, str], wrong: str, message: str) -> None:
    assert re.match(message, said[wrong]), said[wrong]
