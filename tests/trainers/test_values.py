"""The critic's loss and how much it explains, against numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from agentrl_trainers.algorithms.values import explained_variance, value_loss


@pytest.mark.parametrize(
    ("value", "old", "target", "loss", "gradient", "clipped"),
    [
        (1.0, 1.0, 3.0, 2.0, -2.0, False),  # 1/2 (1 - 3)^2; where it was before
        (1.1, 1.0, 3.0, 1.805, -1.9, False),  # moved by less than the bound
        (1.5, 1.0, 3.0, 1.62, 0.0, True),  # moved towards the target by more: counted as 1.2, no gradient
        (0.5, 1.0, 3.0, 3.125, -2.5, False),  # moved away: its own, larger error
        (2.9, 1.0, -3.0, 17.405, 5.9, False),
        (-0.5, 1.0, -3.0, 7.22, 0.0, True),  # 1/2 (0.8 + 3)^2
    ],
)
def test_one_value_by_hand(
    value: float, old: float, target: float, loss: float, gradient: float, clipped: bool
) -> None:
    values = torch.tensor([value], dtype=torch.float64, requires_grad=True)
    found = value_loss(values, torch.tensor([old]).double(), torch.tensor([target]).double(), 0.2)
    found.loss_N.sum().backward()
    assert found.loss_N.item() == pytest.approx(loss, abs=1e-12)
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(gradient, abs=1e-12)
    assert found.clipped_N.tolist() == [clipped]


def test_a_value_inside_the_bound_is_not_counted_as_clipped() -> None:
    """`old + (value - old)` is the value but for rounding, and then its error may be the larger one."""
    old, now = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert not value_loss(now, old, torch.zeros(1000), 10.0).clipped_N.any()


def test_without_a_bound_it_is_half_the_squared_error() -> None:
    found = value_loss(torch.tensor([1.5, -1.0]), torch.tensor([0.0, 0.0]), torch.tensor([3.0, 1.0]), None)
    assert found.loss_N.tolist() == [1.125, 2.0]
    assert found.clipped_N.tolist() == [False, False]


def test_no_token_has_a_gradient_of_zero() -> None:
    """A rank whose micro-batch is a filler still takes part in the backward pass."""
    values = torch.zeros(0, requires_grad=True)
    value_loss(values, torch.zeros(0), torch.zeros(0), 0.2).loss_N.sum().backward()
    assert values.grad is not None


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], 1.0),
        ([6.0, 7.0, 8.0], [1.0, 2.0, 3.0], 1.0),  # off by a constant
        ([2.0, 2.0, 2.0], [1.0, 2.0, 3.0], 0.0),
        ([3.0, 2.0, 1.0], [1.0, 2.0, 3.0], -3.0),  # errors -2, 0, 2: variance 8/3 over 2/3
        ([1.0, 2.0, 3.0], [4.0, 4.0, 4.0], 0.0),  # nothing to explain
    ],
)
def test_explained_variance(values: list[float], returns: list[float], expected: float) -> None:
    assert explained_variance(torch.tensor(values), torch.tensor(returns)) == pytest.approx(expected, abs=1e-9)
