"""Which call sampled which token, and where a reward was earned: exact for every tree of calls, or no answer."""

from __future__ import annotations

import pytest
from call_builders import call, chain, trajectory_of, trees
from hypothesis import given
from hypothesis import strategies as st

from agentrl.train.credit import (
    earned_by_calls,
    locate_samples,
    number_calls,
    place_rewards,
    spread_over_calls,
)
from agentrl.types import Trajectory


def placed(trajectory: Trajectory, row: int, mask: list[int]) -> list[float]:
    located = locate_samples(trajectory)
    assert located is not None
    everywhere = {sample.call for samples in located for sample in samples}
    assert trajectory.reward is not None
    return place_rewards(trajectory.reward, earned_by_calls(trajectory), located[row], everywhere, mask)


def calls_by_token(trajectory: Trajectory) -> dict[int, int]:
    return {token: index for index, one in enumerate(trajectory.calls) for token in one.token_ids}


@given(trees())
def test_every_trained_token_gets_the_advantage_and_the_number_of_the_call_that_sampled_it(
    trajectory: Trajectory,
) -> None:
    located = locate_samples(trajectory)
    assert located is not None
    whose = calls_by_token(trajectory)
    advantages_C = [float(index + 1) for index in range(len(trajectory.calls))]
    seen: set[int] = set()
    for row, samples in zip(trajectory.rows, located, strict=True):
        trained = [token if on else None for token, on in zip(row.token_ids, row.loss_mask, strict=True)]
        spread = spread_over_calls(advantages_C, samples, row.loss_mask)
        assert spread == [0.0 if token is None else whose[token] + 1.0 for token in trained]
        order = list(dict.fromkeys(whose[token] for token in trained if token is not None))
        numbers = number_calls(samples, row.loss_mask)
        assert numbers == [0 if token is None else order.index(whose[token]) for token in trained]
        seen.update(order)
    assert seen == {index for index, one in enumerate(trajectory.calls) if one.untrainable is None}


@given(trees(), st.data())
def test_rewards_are_where_they_were_earned_whatever_the_staleness_bound_masks(
    trajectory: Trajectory, data: st.DataObject
) -> None:
    """By a search for token ids: a call is at home in the first row that holds its last token, behind that token."""
    assert trajectory.reward is not None
    at_home: dict[int, tuple[int, int]] = {}
    for index, one in enumerate(trajectory.calls):
        rows = [number for number, row in enumerate(trajectory.rows) if one.token_ids[-1] in row.token_ids]
        if rows:
            at_home[index] = (rows[0], trajectory.rows[rows[0]].token_ids.index(one.token_ids[-1]))
    rest = trajectory.reward - sum(trajectory.calls[index].reward or 0.0 for index in at_home)
    for number, row in enumerate(trajectory.rows):
        mask = [on and data.draw(st.sampled_from([0, 1, 1])) for on in row.loss_mask]
        kept = [token for token, on in enumerate(mask) if on]
        expected = [0.0] * len(mask)
        for index, (home, last) in at_home.items():
            before = [token for token in kept if token <= last]
            if home == number and before:
                expected[before[-1]] += trajectory.calls[index].reward or 0.0
        if kept:
            expected[kept[-1]] += rest
        assert placed(trajectory, number, mask) == pytest.approx(expected)


def test_the_rewards_along_an_only_row_add_up_to_the_trajectorys() -> None:
    """0.25 at the first call, nothing said of the second; the other 0.75 of the whole 1.0 came at the end."""
    trajectory = chain([0.25, None], 1.0)
    assert trajectory.rows[0].loss_mask == [0, 1, 1, 0, 1, 1]
    assert placed(trajectory, 0, trajectory.rows[0].loss_mask) == [0.0, 0.0, 0.25, 0.0, 0.0, 0.75]


def test_a_reward_after_which_nothing_is_trained_belongs_to_the_last_token_that_is() -> None:
    """Case 24's last part: the second call is too old to be trained, and what it earned is the first one's doing."""
    trajectory = chain([0.25, 0.5], 1.0)
    assert placed(trajectory, 0, [0, 1, 1, 0, 0, 0]) == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_a_reward_before_which_nothing_is_trained_is_nobodys() -> None:
    trajectory = chain([0.25, 0.5], 1.0)
    assert placed(trajectory, 0, [0, 0, 0, 0, 1, 1]) == [0.0, 0.0, 0.0, 0.0, 0.0, 0.75]


def test_what_a_call_in_no_row_earned_comes_at_the_end() -> None:
    """The last call was sampled under a grammar: it is in no row, and what it earned follows from the first."""
    first = call([1], [10, 10])
    last = call([1, 10, 10, 1], [11], parent=0, reward=1.0, untrainable="constrained")
    trajectory = trajectory_of([first, last], 1.0)
    assert [row.token_ids for row in trajectory.rows] == [[1, 10, 10]]
    assert placed(trajectory, 0, [0, 1, 1]) == [0.0, 0.0, 1.0]


def test_a_call_before_a_branch_is_trained_in_one_row_and_is_context_in_the_other() -> None:
    root, left, right = call([1], [10]), call([1, 10, 2], [11], parent=0), call([1, 10, 3], [12], parent=0)
    located = locate_samples(trajectory_of([root, left, right], 1.0))
    assert located is not None
    assert [[(sample.call, sample.start, sample.end) for sample in row] for row in located] == [
        [(0, 1, 2), (1, 3, 4)],
        [(2, 3, 4)],
    ]


def test_of_calls_with_the_same_ids_the_one_with_the_rows_logprobs_is_taken() -> None:
    """Two samples of one prompt that came out alike, under different weights: the rows say which is which."""
    one, other = call([1], [10], logprobs=[-0.5]), call([1], [10], logprobs=[-0.25])
    trajectory = trajectory_of([one, other], 1.0)
    trajectory.rows.reverse()
    located = locate_samples(trajectory)
    assert located is not None
    assert [row[0].call for row in located] == [1, 0]


@pytest.mark.parametrize("fault", ["another id", "another logprob", "another mask", "one row too many", "no calls"])
def test_rows_that_are_not_what_the_calls_sampled_have_no_answer(fault: str) -> None:
    trajectory = chain([None, None], 1.0)
    [row] = trajectory.rows
    if fault == "another id":
        row.token_ids[2] += 1
    elif fault == "another logprob":
        row.logprobs[1] = -9.0
    elif fault == "another mask":
        row.loss_mask[1] = 0
    elif fault == "one row too many":
        trajectory.rows.append(row)
    else:
        trajectory.calls = []
    assert locate_samples(trajectory) is None
