"""The trainer on real DeepSpeed over gloo: one process for one rank, a pair for two, every promise read off those."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from trainer_builders import (
    mixed_batch,
    plain_adamw,
    plain_gradient,
    plain_logprobs,
    plain_updates,
    relative_error,
)
from trainer_ranks import LAYOUTS, STAGES, everything, run_ranks
from transformers import AutoModelForCausalLM

from agentrl.digest import digest_of_weights
from agentrl.types import Row, VersionSpan
from agentrl_trainers.logprob_check import max_logprob_diffs

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def ran(model_dir: Path, out: dict[int, Path]) -> dict[int, list[dict[str, Any]]]:
    """World size -> what `everything` returned on each rank."""
    return {ranks: run_ranks(everything, ranks, model_dir, out[ranks]) for ranks in (1, 2)}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_every_micro_batchs_gradient_counts(ran: Any, ranks: int, stage: int) -> None:
    """Case 74: inputs e1..e4 move all four weights by the same -1; the norm 2 is not clipped to DeepSpeed's 1."""
    for found in ran[ranks]:
        assert found["linear"][stage]["moved"] == [-1.0] * 4
        assert found["linear"][stage]["update"] == (2.0, False)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(ran: Any, ranks: int, stage: int) -> None:
    for found in ran[ranks]:
        assert found["linear"][stage]["kept"] == [0.0] * 4
        assert found["linear"][stage]["skipped"] == (math.inf, True)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", STAGES)
def test_no_layout_changes_the_gradient(ran: Any, model_dir: Path, stage: int, layout: str, ranks: int) -> None:
    """Invariant 10, with 7 rows on 2 ranks (cases 22 and 67): equal to a double loop over rows and tokens."""
    expected = plain_gradient(model_dir, mixed_batch())
    gradient = ran[ranks][0]["gradients"][stage, layout]["gradient"]
    assert gradient.keys() == expected.keys()
    assert {name: relative_error(gradient[name], expected[name]) for name in expected} == {
        name: pytest.approx(0.0, abs=1e-5) for name in expected
    }


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_logprobs_do_not_depend_on_the_layout(ran: Any, model_dir: Path, stage: int, layout: str, ranks: int) -> None:
    """Case 16: mixed lengths, micro-batch 1, 2, 4 and packed; with no update made the ratio is 1."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        expected = [plain_logprobs(model, one) for one in mixed_batch().rows]
    for found in ran[ranks]:
        for ours, plain in zip(found["gradients"][stage, layout]["logprobs"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(ours), plain, rtol=1e-5, atol=1e-5)
        metrics = found["on policy"][stage, layout]
        assert metrics.logprob_diff_max < 1e-5
        assert (metrics.ratio_min, metrics.ratio_max) == (pytest.approx(1.0, abs=1e-5), pytest.approx(1.0, abs=1e-5))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_logged_loss_is_the_token_mean_in_every_layout(ran: Any, stage: int, layout: str, ranks: int) -> None:
    """Case 22: 2 tokens of loss 1 and 8 of loss 4 are 3.4, on every rank."""
    for found in ran[ranks]:
        metrics = found["on policy"][stage, layout]
        assert metrics.loss == pytest.approx(3.4, rel=1e-5)
        assert (metrics.num_tokens, metrics.num_rows, metrics.skipped) == (10, 2, False)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", STAGES)
def test_three_updates_equal_a_plain_loop(ran: Any, model_dir: Path, stage: int, ranks: int) -> None:
    """AdamW (0.9, 0.95) at 1/3, 2/3, 3/3 of 1e-2, norm clipped to 1, decay 0.1 on matrices only."""
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
    parameters = dict(model.named_parameters())
    plain_updates(model, plain_adamw(model))
    ours = ran[ranks][0]["adamw"][stage]
    assert ours.keys() == parameters.keys()
    assert {name: relative_error(ours[name], parameters[name].detach()) for name in ours} == {
        name: pytest.approx(0.0, abs=1e-5) for name in ours
    }


@pytest.mark.parametrize("ranks", [1, 2])
def test_published_groups_are_the_exported_model(ran: Any, out: dict[int, Path], ranks: int) -> None:
    """Cases 52 and 54: one rank at ZeRO 0, two at ZeRO 3 with everything split: all names, full shapes, same bits."""
    published = ran[ranks][0]["life"]["published"][-1]
    exported = load_file(out[ranks] / "export" / "model.safetensors")
    assert [(group.index, group.count) for group in published] == [(i, len(published)) for i in range(len(published))]
    assert len(published) > 2
    assert "lm_head.weight" not in exported  # tied: its one copy is embed_tokens
    sent = {}
    for group in published:
        tensors = load_file(group.path)
        assert (group.version, tuple(tensors)) == (3, tuple(sorted(group.names)))
        assert group.digest == digest_of_weights(Path(group.path))
        assert not sent.keys() & tensors.keys()
        sent |= tensors
    assert sent.keys() == exported.keys()
    assert all(torch.equal(sent[name], exported[name]) for name in sent)


def test_zero_3_on_two_ranks_publishes_what_zero_0_on_one_does_every_time(ran: Any) -> None:
    """Case 54: after 1, 2 and 3 updates."""
    for one, two in zip(ran[1][0]["life"]["published"], ran[2][0]["life"]["published"], strict=True):
        expected = {name: tensor for group in one for name, tensor in load_file(group.path).items()}
        ours = {name: tensor for group in two for name, tensor in load_file(group.path).items()}
        assert ours.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-5)


def test_only_rank_0_writes(ran: Any) -> None:
    assert all(group is None for groups in ran[2][1]["life"]["published"] for group in groups)


@pytest.mark.parametrize("ranks", [1, 2])
def test_updates_move_the_weights_at_the_logged_rate(ran: Any, ranks: int) -> None:
    """SGD at 0.5 with 3 warm-up steps: rates 1/6, 2/6, 3/6; all ranks report the same."""
    metrics = [found["life"]["metrics"] for found in ran[ranks]]
    assert [one.learning_rate for one in metrics[0]] == pytest.approx([0.5 / 3, 1.0 / 3, 0.5])
    assert [one.version for one in metrics[0]] == [1, 2, 3]
    assert metrics[0][0].loss != metrics[0][1].loss != metrics[0][2].loss
    assert all(other[0].loss == metrics[0][0].loss for other in metrics)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_export_is_a_model_with_the_trainers_logprobs(
    ran: Any, out: dict[int, Path], model_dir: Path, ranks: int
) -> None:
    export = out[ranks] / "export"
    rows = [
        Row(
            token_ids=one.token_ids,
            loss_mask=[0] + [1] * (len(one.token_ids) - 1),
            logprobs=[None, *logprobs],
            versions=[VersionSpan(3, 1, len(one.token_ids))],
        )
        for one, logprobs in zip(mixed_batch().rows, ran[ranks][0]["life"]["logprobs"], strict=True)
    ]
    temperatures = [one.temperature for one in mixed_batch().rows]
    assert max_logprob_diffs(export, rows, temperatures, 3) == [pytest.approx(0.0, abs=1e-5)] * 7
    before = max_logprob_diffs(model_dir, rows, temperatures, 3)
    assert min(diff for diff in before if diff is not None) > 1e-3
    assert (export / "tokenizer.json").read_text() == "{}"
    assert (export / "agentrl.json").read_text() == '{"version": 3}\n'
    assert [path.name for path in export.parent.iterdir() if path.name.startswith(".")] == []
