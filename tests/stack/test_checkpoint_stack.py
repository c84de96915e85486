"""A trainer that was saved goes on as one that was never interrupted: on real DeepSpeed, on its layout and others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkpoint_ranks import KINDS, MOVES, STAGES, Continued, life_of_a_rank
from trainer_builders import save_tiny_model
from trainer_ranks import run_ranks

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, dict[Any, Continued]]]]:
    """Of each rank: one alone, a pair that also takes up what the one saved, one that takes up what the pair saved."""
    model_dir = save_tiny_model(tmp_path_factory.mktemp("model"))
    root = tmp_path_factory.mktemp("saved")
    return {
        "one": run_ranks(life_of_a_rank, 1, model_dir, root, True, None, timeout_s=400, forked=True),
        "two": run_ranks(life_of_a_rank, 2, model_dir, root, True, 1, timeout_s=400, forked=True),
        "one again": run_ranks(life_of_a_rank, 1, model_dir, root, False, 2, timeout_s=400, forked=True),
    }


def furthest(ours: Continued, theirs: Continued, engine: str) -> float:
    """The largest difference of any weight, and of any average of one, after step 4."""
    assert ours.weights[engine].keys() == theirs.weights[engine].keys()
    return max(
        float(np.abs(ours.weights[engine][key] - theirs.weights[engine][key]).max()) for key in ours.weights[engine]
    )


@pytest.mark.parametrize("engine", ["policy", "critic"])
@pytest.mark.parametrize("life", ["one", "two"])
@pytest.mark.parametrize("stage", STAGES)
def test_the_step_after_a_resume_is_the_unbroken_one_and_not_a_cold_one(
    lives: Any, stage: int, life: str, engine: str
) -> None:
    """Case 72: weights, moments and their step, of policy and critic; a cold optimizer is far away."""
    for rank in lives[life]:
        unbroken = rank["unbroken"][stage]
        assert furthest(rank["resumed"][stage], unbroken, engine) <= 1e-6
        assert furthest(rank["cold"][stage], unbroken, engine) > 1e-3


@pytest.mark.parametrize("life", ["one", "two"])
@pytest.mark.parametrize("stage", STAGES)
def test_losses_go_on_as_if_nothing_had_happened_when_rollouts_are_replayed(lives: Any, stage: int, life: str) -> None:
    for rank in lives[life]:
        for ours, theirs in zip(rank["resumed"][stage].metrics, rank["unbroken"][stage].metrics, strict=True):
            assert ours.loss == pytest.approx(theirs.loss, abs=1e-6)
            assert ours.value_loss == pytest.approx(theirs.value_loss, abs=1e-6)
            assert ours.grad_norm == pytest.approx(theirs.grad_norm, abs=1e-6)


@pytest.mark.parametrize("life", ["one", "two"])
def test_rate_and_divergence_controller_go_on(lives: Any, life: str) -> None:
    """Case 72. Rate of step 4 of 8, peak 1e-2 at step 3, linear to a tenth: 1e-2 * (1 - 0.9 / 5)."""
    for rank in lives[life]:
        ours, theirs, cold = (rank[kind][2].metrics for kind in ("resumed", "unbroken", "cold"))
        assert ours[0].learning_rate == theirs[0].learning_rate == pytest.approx(8.2e-3)
        assert ours[0].kl_coefficient == theirs[0].kl_coefficient != cold[0].kl_coefficient == 0.1
        assert ours[1].kl_coefficient == theirs[1].kl_coefficient


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_trainer_is_restored_bit_for_bit(lives: Any, kind: str) -> None:
    """Bit for bit, on two ranks."""
    for rank in lives["two"]:
        not_restored, loss_off_by = rank["kinds"][kind]
        assert not_restored == []
        assert loss_off_by <= 1e-6


def test_every_ranks_random_numbers_go_on(lives: Any) -> None:
    """Of torch, Python and NumPy; two ranks draw different ones."""
    for rank in lives["two"]:
        assert rank["resumed"][0].drawn == rank["unbroken"][0].drawn
    first, second = lives["two"]
    assert all(
        ours != theirs for ours, theirs in zip(first["resumed"][0].drawn, second["resumed"][0].drawn, strict=True)
    )


@pytest.mark.parametrize("engine", ["policy", "critic"])
@pytest.mark.parametrize(("saved", "loaded"), [("one", "two"), ("two", "one again")])
@pytest.mark.parametrize("move", MOVES, ids=lambda move: f"zero {move[0]} to {move[1]}")
def test_other_ranks_and_another_stage_take_the_same_step(
    lives: Any, move: tuple[int, int], saved: str, loaded: str, engine: str
) -> None:
    """From one rank to two and back, whatever the stages: equal to the unbroken step where it was saved."""
    unbroken = lives[saved][0]["unbroken"][move[0]]
    for rank in lives[loaded]:
        moved = rank["moved"][move]
        assert furthest(moved, unbroken, engine) <= 1e-5
        assert moved.metrics[1].loss == pytest.approx(unbroken.metrics[1].loss, abs=1e-5)
