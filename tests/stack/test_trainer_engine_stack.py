"""The engine under the trainer on one and two real ranks: bounds, averages, offload, bfloat16, in every ZeRO stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_ranks import CASES, FEWER, IN_BFLOAT16, engines, model_cases
from safetensors.torch import load_file
from trainer_builders import mixed_batch, plain_gradient, plain_logprobs
from trainer_ranks import run_ranks
from transformers import AutoModelForCausalLM

from agentrl_trainers.deepspeed.engine import Update

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran(model_dir: Path, out: dict[int, Path]) -> dict[int, list[dict[str, Any]]]:
    """World size -> what `engines` returned on each rank."""
    return {ranks: run_ranks(engines, ranks, model_dir, out[ranks]) for ranks in (1, 2)}


by_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"ZeRO {case[0]}, {case[1]} offloaded")
by_fewer = pytest.mark.parametrize("case", FEWER, ids=lambda case: f"ZeRO {case[0]}, {case[1]} offloaded")
in_bfloat16 = pytest.mark.parametrize("case", IN_BFLOAT16, ids=lambda case: f"ZeRO {case[0]}, {case[1]} offloaded")
by_ranks = pytest.mark.parametrize("ranks", [1, 2])


@by_ranks
@by_case
def test_an_update_above_the_norm_bound_changes_nothing_and_leaves_nothing_behind(
    ran: Any, case: tuple[int, str], ranks: int
) -> None:
    """Bound 1.5. Inputs e1..e4 have the norm 2, half of them 1: only those move the weights, by -1/2 each time."""
    for found in ran[ranks]:
        first, second, third = found["skipped"][case]
        assert first == ((2.0, True), [0.0] * 4)
        assert second == ((1.0, False), [-0.5] * 4)
        assert third == ((1.0, False), [-1.0] * 4)


@by_ranks
@by_fewer
def test_the_average_of_the_weights_is_the_same_however_they_are_split(
    ran: Any, case: tuple[int, str], ranks: int
) -> None:
    """Decay 0.5, weights 0, -1, (skipped), -2: averages 0, -0.5, -1.25. The weights themselves stay what they are."""
    for found in ran[ranks]:
        averaged = found["averaged"][case]
        assert averaged["whole"] == [[-1.25] * 5]
        assert averaged["weights"] == [-2.0] * 5


@by_ranks
@by_fewer
def test_an_average_can_be_put_however_it_is_split(ran: Any, case: tuple[int, str], ranks: int) -> None:
    for found in ran[ranks]:
        assert found["averaged"][case]["put"] == [[0.0, 1.0, 2.0, 3.0, 4.0]]


def test_under_zero_3_a_rank_averages_its_own_share_only(ran: Any) -> None:
    """5 weights on 2 ranks: 3 each, the last one padded."""
    held = [found["averaged"][3, "nothing"]["held"] for found in ran[2]]
    assert held == [3, 3]


@by_ranks
@in_bfloat16
def test_bfloat16_weights_have_float32_masters(ran: Any, case: tuple[int, str], ranks: int) -> None:
    """Ten updates of 1/512 from 1: alone each rounds back to 1 in bfloat16; together they are 251/256."""
    for found in ran[ranks]:
        assert found["bfloat16"][case] == [251 / 256] * 4


@by_ranks
@in_bfloat16
def test_bfloat16_gradients_are_summed_in_float32(ran: Any, case: tuple[int, str], ranks: int) -> None:
    """512 micro-batches a rank with gradient 1 for each of 4 weights; a sum in bfloat16 stops at 256 a rank."""
    for found in ran[ranks]:
        update, weights = found["bfloat16, summed"][case]
        assert weights == [-512.0 * ranks] * 4
        assert update == Update(pytest.approx(2 * 512 * ranks), skipped=False)


@pytest.mark.parametrize(("ranks", "case"), [(ranks, case) for ranks in (1, 2) for case in model_cases(ranks)], ids=str)
def test_no_way_to_save_memory_changes_the_gradient(
    ran: Any, model_dir: Path, case: tuple[int, str, str], ranks: int
) -> None:
    """Recomputed layers, offloaded states, tokens shared by two ranks: equal to a double loop over rows and tokens."""
    expected = plain_gradient(model_dir, mixed_batch())
    for found in ran[ranks][:1]:
        gradient = found["gradients"][case]["gradient"]
        assert gradient.keys() == expected.keys()
        assert {name: relative_error(gradient[name], expected[name]) for name in expected} == {
            name: pytest.approx(0.0, abs=1e-5) for name in expected
        }


@pytest.mark.parametrize("case", [case for case in model_cases(2) if "shared" in case[1]], ids=str)
def test_every_rank_knows_the_logprobs_of_shared_tokens(ran: Any, model_dir: Path, case: tuple[int, str, str]) -> None:
    """Rows of 3 to 23 tokens, which two ranks cannot cut evenly."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = [plain_logprobs(model, one) for one in mixed_batch().rows]
    for found in ran[2]:
        for ours, plain in zip(found["gradients"][case]["logprobs"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours), plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("ranks", "case"), [(ranks, case) for ranks in (1, 2) for case in model_cases(ranks) if case[0] == 0], ids=str
)
def test_what_a_step_reports_is_counted_once(ran: Any, case: tuple[int, str, str], ranks: int) -> None:
    """2 tokens of loss 1 and 8 of loss 4 are 3.4, also where two ranks pass the same rows."""
    for found in ran[ranks]:
        metrics = found["steps"][case]
        assert metrics.loss == pytest.approx(3.4, rel=1e-5)
        assert (metrics.num_tokens, metrics.clip_fraction, metrics.skipped) == (10, 0.0, False)
        assert metrics.ratio_max == pytest.approx(1.0, abs=1e-5)
        assert metrics.peak_memory_bytes > 50_000_000  # torch alone


@by_ranks
@pytest.mark.parametrize("export", ["export", "resumed"])
def test_an_export_has_the_average_beside_the_weights(ran: Any, out: dict[int, Path], export: str, ranks: int) -> None:
    """Weights a, b, c at decay 0.5: (a + b) / 4 + c / 2. One rank at ZeRO 0, two at 3; resumed at ZeRO 1."""
    first, second, third = ran[ranks][0]["average of a model"]["weights"]
    average = load_file(out[ranks] / export / "average" / "model.safetensors")
    weights = load_file(out[ranks] / export / "model.safetensors")
    assert average.keys() == weights.keys() == third.keys()
    for name, value in third.items():
        torch.testing.assert_close(weights[name], torch.tensor(value))
        expected = (torch.tensor(first[name]) + torch.tensor(second[name])) / 4 + torch.tensor(value) / 2
        torch.testing.assert_close(average[name], expected, rtol=1e-6, atol=1e-6)
        assert name.endswith("norm.weight") or not torch.equal(average[name], weights[name])
    model = AutoModelForCausalLM.from_pretrained(out[ranks] / export / "average")
    torch.testing.assert_close(model.model.embed_tokens.weight.detach(), average["model.embed_tokens.weight"])


@by_ranks
def test_a_run_without_an_average_goes_on_from_one_that_had_it(ran: Any, ranks: int) -> None:
    assert not ran[ranks][0]["average of a model"]["step without"].skipped


@by_ranks
@pytest.mark.parametrize("mini_batches", [1, 5])
def test_the_schedule_counts_steps_however_many_updates_they_make(ran: Any, mini_batches: int, ranks: int) -> None:
    """Case 73: warm-up 2 of 4 at 1e-3: 1/2, 1, then 1 - 0.9 / 2 and 0.1 of it; the first step moves the weights."""
    for found in ran[ranks]:
        metrics = found["rates"][mini_batches]
        assert [one.updates for one in metrics] == [mini_batches] * 4
        assert [one.learning_rate for one in metrics] == pytest.approx([5e-4, 1e-3, 5.5e-4, 1e-4])
        assert metrics[0].loss != metrics[1].loss


def relative_error(ours: np.ndarray, expected: torch.Tensor) -> float:
    difference = np.linalg.norm(ours.astype(np.float64) - expected.double().numpy())
    return float(difference / expected.double().norm())
