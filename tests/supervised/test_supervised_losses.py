"""The losses by hand: numbers worked out on paper, at 1e-6."""

from __future__ import annotations

import math

import pytest
import torch

from agentrl_trainers.algorithms.losses_supervised.bradley_terry import bradley_terry
from agentrl_trainers.algorithms.losses_supervised.cross_entropy import cross_entropy
from agentrl_trainers.algorithms.losses_supervised.dpo import DpoLoss, dpo


def test_cross_entropy_is_the_weighted_sum_of_minus_the_logprobs() -> None:
    """0.5 * 1 + 0.25 * 2 + 0.25 * 3."""
    loss = cross_entropy(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([0.5, 0.25, 0.25]))
    assert float(loss) == pytest.approx(1.75, abs=1e-6)


@pytest.mark.parametrize(
    ("chosen", "rejected", "expected"),
    [
        (1.0, 1.0, math.log(2)),
        (math.log(3), 0.0, math.log(4 / 3)),
        (0.0, math.log(3), math.log(4)),
        (-90.0, 10.0, 100.0),
    ],
)
def test_bradley_terry_by_hand(chosen: float, rejected: float, expected: float) -> None:
    """Odds of 3 to 1 are a probability of 3/4, and far off the loss is the difference itself."""
    loss_P = bradley_terry(torch.tensor([chosen]), torch.tensor([rejected]))
    assert loss_P.tolist() == pytest.approx([expected], abs=1e-6)


def test_bradley_terry_pulls_by_the_probability_of_having_been_wrong() -> None:
    chosen_P, rejected_P = torch.tensor([math.log(3)], requires_grad=True), torch.zeros(1, requires_grad=True)
    bradley_terry(chosen_P, rejected_P).sum().backward()
    assert (chosen_P.grad.item(), rejected_P.grad.item()) == (pytest.approx(-0.25), pytest.approx(0.25))  # type: ignore[union-attr]


def pair(beta: float, smoothing: float, chosen_P: torch.Tensor, rejected_P: torch.Tensor) -> DpoLoss:
    """The reference thinks -6 of the chosen answer and -3 of the rejected one."""
    return dpo(
        chosen_P,
        rejected_P,
        reference_chosen_P=torch.tensor([-6.0]),
        reference_rejected_P=torch.tensor([-3.0]),
        beta=beta,
        label_smoothing=smoothing,
    )


@pytest.mark.parametrize(
    ("smoothing", "expected"), [(0.0, math.log1p(math.exp(-2))), (0.1, math.log1p(math.exp(-2)) + 0.1 * 2)]
)
def test_dpo_by_hand(smoothing: float, expected: float) -> None:
    """Beta 0.5: rewards 0.5 * (-4 + 6) = 1 and 0.5 * (-5 + 3) = -1, margin 2; smoothing e adds e * margin."""
    found = pair(0.5, smoothing, torch.tensor([-4.0]), torch.tensor([-5.0]))
    assert found.loss_P.tolist() == pytest.approx([expected], abs=1e-6)
    assert (found.chosen_rewards_P.tolist(), found.rejected_rewards_P.tolist()) == ([1.0], [-1.0])


def test_dpos_gradient_is_beta_times_the_probability_of_having_been_wrong() -> None:
    chosen_P, rejected_P = torch.tensor([-4.0], requires_grad=True), torch.tensor([-5.0], requires_grad=True)
    pair(0.5, 0.0, chosen_P, rejected_P).loss_P.sum().backward()
    wrong = 1 / (1 + math.exp(2))
    assert chosen_P.grad.item() == pytest.approx(-0.5 * wrong, abs=1e-6)  # type: ignore[union-attr]
    assert rejected_P.grad.item() == pytest.approx(0.5 * wrong, abs=1e-6)  # type: ignore[union-attr]


def test_a_policy_that_is_its_reference_is_undecided() -> None:
    found = pair(0.1, 0.0, torch.tensor([-6.0]), torch.tensor([-3.0]))
    assert found.loss_P.tolist() == pytest.approx([math.log(2)], abs=1e-6)


def test_no_pairs_are_no_loss_with_a_gradient() -> None:
    none = torch.zeros(0, requires_grad=True)
    loss = (
        bradley_terry(none, none).sum()
        + dpo(none, none, reference_chosen_P=none, reference_rejected_P=none, beta=1.0).loss_P.sum()
    )
    loss.backward()
    assert (float(loss.detach()), none.grad.tolist()) == (0.0, [])  # type: ignore[union-attr]
