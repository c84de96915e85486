"""From the losses of tokens to one number: each mean by hand, its denominators over all micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from trainer_builders import row

from agentrl_trainers.algorithms.aggregation.denominators import Denominators, denominators
from agentrl_trainers.objective import AGGREGATIONS
from agentrl_trainers.settings.objective import AggregationConfig

LOSSES = [1.0, 1.0, *[4.0] * 8]  # of a row of two tokens and one of eight
ROWS = [0, 0, *[1] * 8]
OF = Denominators(tokens=10, rows=2)
MEANS = {
    "token_mean": 3.4,  # (2 * 1 + 8 * 4) / 10
    "sequence_mean": 2.5,  # (1 + 4) / 2
    "constant": 34 / 32,  # (2 / 16 + 32 / 16) / 2
}


def mean(name: Any, losses: Sequence[float], rows: Sequence[int], of: Denominators) -> float:
    weight_N = AGGREGATIONS[name](torch.tensor(rows, dtype=torch.long), of, AggregationConfig(name=name, length=16))
    return float((weight_N.double() * torch.tensor(losses, dtype=torch.float64)).sum())


@pytest.mark.parametrize(("name", "expected"), MEANS.items())
def test_each_mean_by_hand(name: str, expected: float) -> None:
    """Case 22: the token mean is 3.4, neither 2.5 nor 3.4 over the number of anything."""
    assert mean(name, LOSSES, ROWS, OF) == pytest.approx(expected)


@pytest.mark.parametrize(("name", "expected"), MEANS.items())
def test_the_shares_of_two_micro_batches_are_the_mean_of_both(name: str, expected: float) -> None:
    """Case 22: their rows are counted anew in each."""
    assert mean(name, LOSSES[:2], ROWS[:2], OF) + mean(name, LOSSES[2:], [0] * 8, OF) == pytest.approx(expected)


@pytest.mark.parametrize("name", MEANS)
def test_an_empty_micro_batch_adds_nothing(name: str) -> None:
    assert mean(name, [], [], OF) == 0.0


def test_denominators_count_trained_tokens_and_the_rows_that_have_any() -> None:
    rows = [row(6, trained=[2, 4]), row(5, trained=[]), row(3, trained=[2])]
    assert denominators(rows) == Denominators(tokens=3, rows=2)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.data())
def test_no_cut_into_micro_batches_and_no_order_of_rows_changes_a_mean(counts: list[int], data: st.DataObject) -> None:
    """Every aggregation of losses 1, 2, 3, … equals the one of all rows together."""
    rows = [index for index, count in enumerate(counts) for _ in range(count)]
    losses = [float(number) for number in range(1, len(rows) + 1)]
    of = Denominators(tokens=len(rows), rows=len(counts))
    order = data.draw(st.permutations(range(len(counts))))
    cut = data.draw(st.integers(0, len(counts)))
    for name in MEANS:
        shares = 0.0
        for part in (order[:cut], order[cut:]):
            at = [(local, n) for local, index in enumerate(part) for n, of_row in enumerate(rows) if of_row == index]
            shares += mean(name, [losses[n] for _, n in at], [local for local, _ in at], of)
        assert shares == pytest.approx(mean(name, losses, rows, of), rel=1e-6)
