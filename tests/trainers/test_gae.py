"""Generalised advantage estimation over sampled tokens, against numbers worked by hand and a double sum.

Case numbers are those of the list of reported faults.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_trainers.algorithms.advantages.gae import Vector, gae
from agentrl_trainers.algorithms.whiten import whiten


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float64)


def one_row(size: int) -> np.ndarray:
    return np.zeros(size, dtype=np.int64)


def test_four_tokens_by_hand() -> None:
    """Case 24: deltas 0.08, 0.07, 0.06 and 0.6, each carrying 0.72 of the next."""
    found = gae(vector(0, 0, 0, 1), vector(0.1, 0.2, 0.3, 0.4), one_row(4), gamma=0.9, lam=0.8)
    assert found.advantages_A == pytest.approx([0.3854528, 0.42424, 0.492, 0.6], abs=1e-12)
    assert found.returns_A == pytest.approx([0.4854528, 0.62424, 0.792, 1.0], abs=1e-12)


def test_the_last_token_looks_at_nothing_behind_it() -> None:
    """Case 24: what the reported code bootstrapped from was a value of 100 at a masked slot, and gave 5.7 and 6.0."""
    found = gae(vector(0, 1), vector(0, 0), one_row(2), gamma=1.0, lam=0.95)
    assert found.advantages_A == pytest.approx([0.95, 1.0], abs=1e-12)


@pytest.mark.parametrize(("gamma", "expected"), [(0.5, [0.5, 1.0]), (1.0, [1.0, 1.0])])
def test_with_lambda_1_the_returns_are_the_discounted_rewards_to_go(gamma: float, expected: list[float]) -> None:
    """Case 23: an outcome reward reaches the tokens of every turn, whatever the critic thinks."""
    found = gae(vector(0, 1), vector(0.3, -7.0), one_row(2), gamma=gamma, lam=1.0)
    assert found.returns_A == pytest.approx(expected, abs=1e-12)


def test_gamma_0_gives_each_token_its_own_reward_less_its_value() -> None:
    found = gae(vector(1, 2, 3), vector(0.5, 0.5, 0.5), one_row(3), gamma=0.0, lam=0.95)
    assert found.advantages_A == pytest.approx([0.5, 1.5, 2.5], abs=1e-12)


def test_rows_are_worlds_of_their_own() -> None:
    both = gae(vector(0, 1, 5), vector(0.1, 0.2, 0.3), np.array([0, 0, 1]), gamma=0.9, lam=0.8)
    first = gae(vector(0, 1), vector(0.1, 0.2), one_row(2), gamma=0.9, lam=0.8)
    second = gae(vector(5), vector(0.3), one_row(1), gamma=0.9, lam=0.8)
    assert both.advantages_A.tolist() == [*first.advantages_A, *second.advantages_A]


def test_no_token_gives_nothing() -> None:
    assert gae(vector(), vector(), one_row(0), gamma=0.9, lam=0.8).advantages_A.tolist() == []


@given(
    rows=st.lists(
        st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=1, max_size=8), min_size=1, max_size=4
    ),
    gamma=st.floats(0, 1),
    lam=st.floats(0, 1),
)
def test_it_is_the_double_sum_of_its_definition(
    rows: list[list[tuple[float, float]]], gamma: float, lam: float
) -> None:
    """A_t is the sum over l of (gamma lambda)^l delta_{t+l}, for every token by itself."""
    flat = [pair for row in rows for pair in row]
    row_A = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    found = gae(vector(*(r for r, _ in flat)), vector(*(v for _, v in flat)), row_A, gamma=gamma, lam=lam)
    expected = []
    for row in rows:
        values = [value for _, value in row] + [0.0]
        deltas = [reward + gamma * values[t + 1] - values[t] for t, (reward, _) in enumerate(row)]
        for t in range(len(row)):
            expected.append(sum((gamma * lam) ** (later - t) * deltas[later] for later in range(t, len(row))))
    assert found.advantages_A == pytest.approx(expected, abs=1e-6)


def test_whitening_gives_mean_0_and_variance_1() -> None:
    """1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3, variance 14/4."""
    assert whiten(vector(1, 2, 3, 6)) == pytest.approx([-1.0690, -0.5345, 0.0, 1.6036], abs=5e-5)


@pytest.mark.parametrize("values", [[], [3.0], [0.7] * 8, [1e6 + 1e-4 * i for i in range(4)]])
def test_whitening_never_divides_by_what_is_only_rounding(values: list[float]) -> None:
    """Case 27."""
    assert whiten(vector(*values)).tolist() == [0.0] * len(values)
