"""The adaptive coefficient of the divergence, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest

from agentrl_trainers.algorithms.kl.controller import KlController


def controller(*, target: float | None = 0.1, horizon: int = 1000) -> KlController:
    return KlController(coefficient=0.5, target=target, horizon=horizon)


@pytest.mark.parametrize(
    ("kl", "tokens", "expected"),
    [
        (0.11, 500, 0.5 * (1 + 0.1 * 0.5)),  # a tenth above the target, half a horizon
        (0.09, 500, 0.5 * (1 - 0.1 * 0.5)),
        (0.1, 500, 0.5),  # at the target
        (7.0, 1000, 0.5 * 1.2),  # the error is cut to a fifth
        (0.0, 1000, 0.5 * 0.8),
        (-0.3, 1000, 0.5 * 0.8),  # k1 may be negative
        (math.nan, 1000, 0.5),  # a step that was not finite
        (0.0, 10**9, 0.5 * 0.8),  # more tokens than the horizon never turn it negative
    ],
)
def test_one_step_moves_the_coefficient_by_the_error_cut_to_a_fifth(kl: float, tokens: int, expected: float) -> None:
    assert controller().after(kl, tokens).coefficient == pytest.approx(expected, rel=1e-12)


def test_without_a_target_it_stays() -> None:
    assert controller(target=None).after(7.0, 1000).coefficient == 0.5


def test_a_checkpoint_moves_an_adaptive_coefficient_and_leaves_a_fixed_one_as_it_is_configured() -> None:
    assert controller().restored(0.3).coefficient == 0.3
    assert controller(target=None).restored(0.3).coefficient == 0.5


def test_feedback_holds_a_divergence_that_answers_to_it_at_the_target() -> None:
    """A policy whose divergence is 0.02 / coefficient is at the target of 0.1 with a coefficient of 0.2."""
    state = controller()
    for _ in range(200):
        state = state.after(0.02 / state.coefficient, 500)
    assert state.coefficient == pytest.approx(0.2, rel=1e-3)
