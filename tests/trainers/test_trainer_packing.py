"""Packing: every row once, none cut, ranks in step, work balanced."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_trainers.packing import cut, pack, plan_step, row_cost, spread

lengths_of_rows = st.lists(st.integers(1, 300), max_size=40)


@given(lengths_of_rows, st.integers(1, 300))
def test_packing_places_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    bins = pack(range(len(lengths)), lengths, budget)
    assert sorted(row for rows in bins for row in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or sum(lengths[row] for row in rows) <= budget for rows in bins)


@given(lengths_of_rows, st.integers(1, 300))
def test_no_two_packs_could_have_been_one(lengths: list[int], budget: int) -> None:
    loads = [sum(lengths[row] for row in rows) for rows in pack(range(len(lengths)), lengths, budget)]
    assert all(a + b > budget for index, a in enumerate(loads) for b in loads[index + 1 :])


def test_first_fit_decreasing_by_hand() -> None:
    # Longest first: 7 opens a pack, 5 another, 3 fills the first, 2 and 2 go to the second; 12 is above the budget.
    assert pack(range(6), [2, 7, 3, 5, 12, 2], budget=10) == [[4], [1, 2], [3, 0, 5]]


def test_cut_takes_rows_of_similar_length_together() -> None:
    assert cut(range(5), [3, 9, 4, 8, 1], rows_each=2) == [[1, 3], [2, 0], [4]]


@given(lengths_of_rows, st.integers(1, 5), st.integers(1, 200), st.booleans())
def test_every_rank_makes_the_same_number_of_passes_over_disjoint_rows(
    lengths: list[int], ranks: int, limit: int, packed: bool
) -> None:
    group = partial(pack, lengths=lengths, budget=limit) if packed else partial(cut, lengths=lengths, rows_each=limit)
    plans = plan_step(lengths, ranks=ranks, hidden_size=64, group=group)
    assert len(plans) == ranks
    assert len({len(plan) for plan in plans}) == 1
    assert len(plans[0]) >= 1
    assert sorted(row for plan in plans for rows in plan for row in rows) == list(range(len(lengths)))
    assert plans == plan_step(lengths, ranks=ranks, hidden_size=64, group=group)


def test_seven_rows_on_two_ranks_get_fillers_not_extra_rows() -> None:
    """Case 67's flavour: 4 and 3 rows, one a pass, so one rank makes an empty pass."""
    plans = plan_step([10] * 7, ranks=2, hidden_size=64, group=partial(pack, lengths=[10] * 7, budget=10))
    assert plans == [[[0], [2], [4], [6]], [[1], [3], [5], []]]


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=40), st.integers(1, 6))
def test_no_rank_has_more_than_the_fair_share_and_one_row(costs: list[float], ranks: int) -> None:
    loads = [sum(costs[row] for row in rows) for rows in spread(costs, ranks)]
    assert max(loads) <= sum(costs) / ranks + max(costs) + 1e-9


def test_cost_grows_with_the_square_of_the_length() -> None:
    # 1200 tokens at hidden 100: attention costs as much as the matrices, 1200 * (1 + 1200 / 1200).
    assert row_cost(1200, 100) == pytest.approx(2400.0)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(1, 3))
def test_the_busiest_rank_has_at_most_a_third_more_than_in_the_best_layout(costs: list[int], ranks: int) -> None:
    """Longest first is within 4/3 - 1/(3 ranks) of the optimum (Graham, 1969), found here by trying all layouts."""

    def busiest(places: tuple[int, ...]) -> int:
        return max(sum(cost for cost, at in zip(costs, places, strict=True) if at == rank) for rank in range(ranks))

    best = min(busiest(places) for places in product(range(ranks), repeat=len(costs)))
    ours = max(sum(costs[row] for row in rows) for rows in spread(costs, ranks))
    assert best <= ours <= best * (4 / 3 - 1 / (3 * ranks)) + 1e-9


def test_rows_are_balanced_by_work_not_by_tokens() -> None:
    """At hidden 10, 120 tokens cost 240 and 40 cost 53.3: one long row weighs as much as four and a half short ones."""
    lengths = [120, 40, 40, 40, 40]
    plans = plan_step(lengths, ranks=2, hidden_size=10, group=partial(pack, lengths=lengths, budget=1000))
    assert plans == [[[0]], [[1, 2, 3, 4]]]
