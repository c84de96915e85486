"""Runs that learn from data on real DeepSpeed, one rank and two: against plain PyTorch scripts over transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from supervised_builders import (
    PLAIN,
    answers,
    plain_gradient,
    plain_sft,
    plain_steps,
    save_tiny_reward_model,
    score_of,
    scored,
    transcripts,
)
from supervised_ranks import KINDS, LAYOUTS_OF, learn
from trainer_builders import plain_logprobs, save_tiny_model
from trainer_ranks import run_ranks
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

pytestmark = pytest.mark.ranks

LAYOUTS_OF_STAGES = [(stage, layout) for stage, layouts in LAYOUTS_OF.items() for layout in layouts]
LAYOUTS_OF_STAGES += [(0, "tokens shared by the ranks")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    policy = save_tiny_model(tmp_path_factory.mktemp("policy"), tied=False)
    return {
        "sft": policy,
        "dpo": policy,
        "reward_model": save_tiny_reward_model(tmp_path_factory.mktemp("reward-model")),
        "other": save_tiny_model(tmp_path_factory.mktemp("other"), seed=5, tied=False),
    }


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    return {ranks: tmp_path_factory.mktemp(f"out{ranks}") for ranks in (1, 2)}


@pytest.fixture(scope="module")
def ran(models: dict[str, Path], out: dict[int, Path]) -> dict[int, list[dict[str, Any]]]:
    """World size -> what `learn` returned on each rank."""
    return {ranks: run_ranks(learn, ranks, models, out[ranks]) for ranks in (1, 2)}


@pytest.fixture(scope="module")
def expected(models: dict[str, Path]) -> dict[str, tuple[float, dict[str, torch.Tensor]]]:
    return {kind: plain_gradient(kind, models[kind]) for kind in PLAIN}


def relative_error(ours: np.ndarray, plain: torch.Tensor) -> float:
    difference = np.linalg.norm(ours.astype(np.float64) - plain.double().numpy())
    return float(difference / plain.double().norm())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("stage", "layout"), LAYOUTS_OF_STAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_no_layout_changes_loss_or_gradient(
    ran: Any, expected: Any, kind: str, stage: int, layout: str, ranks: int
) -> None:
    """Invariant 10: packed, padded, chunked, on one rank or two, the numbers are those of a loop over rows."""
    loss, gradient = expected[kind]
    for of_rank in ran[ranks]:
        found = of_rank["gradients"][kind, stage, layout]
        assert found["metrics"]["loss"] == pytest.approx(loss, rel=1e-6)
        assert found["evaluated"]["loss"] == pytest.approx(loss, rel=1e-6)
    ours = ran[ranks][0]["gradients"][kind, stage, layout]["gradient"]
    assert ours.keys() == gradient.keys()
    assert {name: relative_error(ours[name], gradient[name]) for name in gradient} == {
        name: pytest.approx(0.0, abs=1e-5) for name in gradient
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", LAYOUTS_OF)
@pytest.mark.parametrize("kind", KINDS)
def test_two_updates_equal_a_plain_script(ran: Any, models: dict[str, Path], kind: str, stage: int, ranks: int) -> None:
    """AdamW (0.9, 0.95) with warm-up and the norm clipped to 1."""
    plain = plain_steps(kind, models[kind])
    ours = ran[ranks][0]["steps"][kind, stage]
    assert ours.keys() == plain.keys()
    assert {name: relative_error(ours[name], plain[name]) for name in plain} == {
        name: pytest.approx(0.0, abs=1e-5) for name in plain
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(("key", "model"), [("reference", "dpo"), ("other reference", "other")])
def test_the_reference_is_the_initial_policy_or_the_model_that_was_named(
    ran: Any, models: dict[str, Path], key: str, model: str, ranks: int
) -> None:
    lm = AutoModelForCausalLM.from_pretrained(models[model], dtype=torch.float32, attn_implementation="eager")
    for one, ours in zip(answers().rows, ran[ranks][0][key], strict=True):
        with torch.no_grad():
            plain = plain_logprobs(lm, one)
        trained = [float(plain[position - 1]) for position, on in enumerate(one.loss_mask) if on]
        assert ours == pytest.approx(trained, abs=1e-5)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_exported_reward_model_scores_as_the_trainer_does(ran: Any, out: dict[int, Path], ranks: int) -> None:
    """It began as a policy: its body under a new head, which transformers loads as a classifier with one output."""
    directory = out[ranks] / "reward_model"
    model, report = AutoModelForSequenceClassification.from_pretrained(
        directory, dtype=torch.float32, output_loading_info=True
    )
    assert (model.config.num_labels, set(report["missing_keys"]), set(report["unexpected_keys"])) == (1, set(), set())
    with torch.no_grad():
        plain = [float(score_of(model, one)) for one in scored().rows]
    assert ran[ranks][0]["scores"] == pytest.approx(plain, abs=1e-5)
    assert len(set(plain)) == len(plain)


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_adapter_learns_and_is_exported_merged_and_by_itself(
    ran: Any, models: dict[str, Path], out: dict[int, Path], ranks: int
) -> None:
    losses, last = ran[ranks][0]["adapted"]
    assert last < losses[0]
    merged = AutoModelForCausalLM.from_pretrained(out[ranks] / "adapted", dtype=torch.float32)
    before = AutoModelForCausalLM.from_pretrained(models["sft"], dtype=torch.float32)
    with torch.no_grad():
        assert float(plain_sft(merged, transcripts())) == pytest.approx(last, rel=1e-5)
        assert float(plain_sft(before, transcripts())) == pytest.approx(losses[0], rel=1e-5)
    assert (out[ranks] / "adapted" / "adapter" / "adapter_config.json").is_file()
