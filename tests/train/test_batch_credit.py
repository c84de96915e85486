"""Advantages over a step and within an episode: whose credit reaches which token of the batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
from call_builders import call, chain, trajectory_of, trees
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import plugins
from agentrl.errors import TrainerError
from agentrl.train.advantage import Attempt, step_estimator
from agentrl.train.batch import PreparedBatch, ScoredGroup, flat_trajectories, has_signal, prepare_batch
from agentrl.train.config import AlgorithmConfig, StalenessConfig
from agentrl.types import Group, Task, Trajectory


def group(name: str, *trajectories: Trajectory) -> ScoredGroup:
    return ScoredGroup(Group(group_id=name, task=Task(id=name)), list(trajectories))


def prepare(*groups: ScoredGroup, advantage: Any = "grpo", version: int = 0, **algorithm: Any) -> PreparedBatch:
    return prepare_batch(
        groups,
        version=version,
        staleness=StalenessConfig(max_lag=1),
        algorithm=AlgorithmConfig(**algorithm),
        estimate=plugins.load("agentrl.advantages", advantage) if isinstance(advantage, str) else advantage,
    )


def outcomes(prepared: PreparedBatch) -> dict[str, str]:
    return {s.session_id: s.outcome for of_group in prepared.settlements.values() for s in of_group}


def test_turn_level_advantages_rewards_and_call_numbers_reach_the_tokens() -> None:
    """Episode a earned 0.5 at its first call and 0.5 at its second, b nothing: A = 1 - 0, then 0.5 - 0."""
    prepared = prepare(group("g", chain([0.5, 0.5], 1.0, session_id="a"), chain([0.0, 0.0], 0.0, session_id="b")),
                       advantage="leave_out_returns")  # fmt: skip
    a, b = prepared.batch.rows
    assert a.loss_mask == [0, 1, 1, 0, 1, 1]
    assert a.advantages == [0.0, 1.0, 1.0, 0.0, 0.5, 0.5]
    assert b.advantages == [0.0, -1.0, -1.0, 0.0, -0.5, -0.5]
    assert a.rewards == [0.0, 0.0, 0.5, 0.0, 0.0, 0.5]
    assert a.calls == [0, 0, 0, 0, 1, 1]


def test_a_turn_level_advantage_follows_its_call_into_a_branch() -> None:
    """The first call is trained in the first row; the second row has its own call's advantage alone."""
    calls = [call([1], [10], reward=0.25), call([1, 10, 2], [11], parent=0), call([1, 10, 3], [12], parent=0)]
    branched = trajectory_of(calls, 1.0, session_id="a")
    first, second, _ = prepare(
        group("g", branched, chain([None], 0.0, session_id="b")), advantage="leave_out_returns"
    ).batch.rows
    assert (first.token_ids, first.advantages) == ([1, 10, 2, 11], [0.0, 1.0, 0.0, 0.75])
    assert (second.token_ids, second.advantages) == ([1, 10, 3, 12], [0.0, 0.0, 0.0, 0.75])


def test_a_step_is_whitened_over_the_tokens_that_staleness_leaves() -> None:
    """b's two tokens are too old: with rewards 1 and 0 of two tokens each, mean 0.5 and spread 0.5 are a's and c's."""
    old = chain([None], 9.0, session_id="b", version=-2)
    prepared = prepare(
        group("g", chain([None], 1.0, session_id="a"), old, chain([None], 0.0, session_id="c")),
        advantage="reinforce_plus_plus",
    )
    assert {row.session_id: row.advantages[1] for row in prepared.batch.rows} == {"a": 1.0, "c": -1.0}
    assert outcomes(prepared)["b"] == "stale"


def test_no_role_is_whitened_with_another() -> None:
    """Rewards 1 and 0 of writers, 100 and 300 of critics: each pair by itself is ±1."""
    mixed = [
        chain([None], reward, session_id=name) for name, reward in zip("wcxd", (1.0, 100.0, 0.0, 300.0), strict=True)
    ]
    for one, role in zip(mixed, ("writer", "critic", "writer", "critic"), strict=True):
        one.metadata = {"role": role}
    prepared = prepare(group("g", *mixed), advantage="reinforce_plus_plus")
    assert {row.session_id: row.advantages[1] for row in prepared.batch.rows} == {
        "w": 1.0,
        "c": -1.0,
        "x": -1.0,
        "d": 1.0,
    }


def test_groups_left_out_for_want_of_signal_do_not_enter_the_whitening() -> None:
    """Centred, the flat group's zeros would halve the variance; without them ±0.5 has spread 0.5."""
    flat = group("f", chain([None], 1.0, session_id="f0"), chain([None], 1.0, session_id="f1"))
    mixed = group("m", chain([None], 1.0, session_id="m0"), chain([None], 0.0, session_id="m1"))
    kept = prepare(flat, mixed, advantage="reinforce_plus_plus_baseline")
    dropped = prepare(flat, mixed, advantage="reinforce_plus_plus_baseline", zero_variance="drop")
    assert [row.advantages[1] for row in dropped.batch.rows] == pytest.approx([1.0, -1.0])
    assert [row.advantages[1] for row in kept.batch.rows] == pytest.approx([0.0, 0.0, math.sqrt(2), -math.sqrt(2)])
    assert (kept.no_signal_groups, dropped.no_signal_groups) == (1, 1)


@pytest.mark.parametrize(
    ("advantage", "flat"),
    [
        ("grpo", True),
        ("leave_out_returns", False),
        ("reinforce", False),
        ("reinforce_plus_plus", False),
        ("gae", False),
    ],
)
def test_whether_a_group_of_equal_rewards_has_a_signal_depends_on_the_estimator(advantage: str, flat: bool) -> None:
    """All earned 1, at different calls: a turn-level estimator tells them apart, and one that looks beyond the group
    does not ask the group."""
    scored = group("g", chain([1.0, 0.0], 1.0, session_id="a"), chain([0.0, 1.0], 1.0, session_id="b"))
    estimate = plugins.load("agentrl.advantages", advantage)
    assert has_signal(scored, estimate) is not flat
    assert flat_trajectories(scored, estimate) == ({0, 1} if flat else set())


def test_rows_that_are_not_what_the_calls_sampled_are_left_out_by_name_and_counted() -> None:
    odd = chain([None], 1.0, session_id="a")
    odd.rows[0].token_ids[1] += 1
    prepared = prepare(group("g", odd, chain([None], 0.0, session_id="b")))
    assert outcomes(prepared) == {"a": "unattributed", "b": "trained"}
    assert prepared.dropped_tokens == {"unattributed": 2}


@pytest.mark.parametrize(
    ("stop_reason", "finish_reason", "outcome"),
    [
        ("max_tokens", "length", "overlong_max_tokens"),
        ("max_turns", "stop", "overlong_max_turns"),
        ("max_tool_calls", "stop", "overlong_max_tool_calls"),
        ("context_overflow", "stop", "overlong_context_overflow"),
        ("truncated", "stop", "overlong_truncated"),
        ("done", "length", "overlong_length"),
        ("done", "stop", "trained"),
    ],
)
def test_what_a_limit_ended_has_no_gradient_when_so_configured_and_still_counts_for_its_siblings(
    stop_reason: str, finish_reason: Any, outcome: str
) -> None:
    """DAPO masks its loss alone: of rewards 1 and 0, b has -0.7071 whether a is trained or not.

    Case 45: the engine's finish reason decides, whatever the last token is.
    """
    cut = chain([None, None], 1.0, session_id="a", stop_reason=stop_reason, finish_reason=finish_reason)
    scored = group("g", cut, chain([None], 0.0, session_id="b"))
    masked, kept = prepare(scored, overlong="mask"), prepare(scored)
    assert outcomes(masked) == {"a": outcome, "b": "trained"}
    assert outcomes(kept) == {"a": "trained", "b": "trained"}
    assert masked.batch.rows[-1].advantages[1] == pytest.approx(-math.sqrt(0.5))
    assert masked.dropped_tokens == ({} if outcome == "trained" else {outcome: 4})


def test_seven_episodes_of_thirteen_rows_count_seven_times_and_a_flat_group_takes_its_rows_along() -> None:
    """Case 67: rows 2, 2, 1 of rewards 1, 0, 0 (mean 1/3, three attempts), and 2, 2, 2, 2 of a group that is flat."""

    def branches(session_id: str, reward: float, rows: int) -> Trajectory:
        return trajectory_of([call([1, leaf], [10 + leaf]) for leaf in range(rows)], reward, session_id=session_id)

    odd = group("odd", branches("a", 1.0, 2), branches("b", 0.0, 2), branches("c", 0.0, 1))
    flat = group("flat", *(branches(name, 1.0, 2) for name in "defg"))
    kept, dropped = (
        prepare(odd, flat, advantage="dr_grpo"),
        prepare(odd, flat, advantage="dr_grpo", zero_variance="drop"),
    )
    assert (len(kept.batch.rows), len(dropped.batch.rows)) == (13, 5)
    assert [row.advantages[2] for row in dropped.batch.rows] == pytest.approx([2 / 3, 2 / 3, -1 / 3, -1 / 3, -1 / 3])


def test_a_short_group_is_trained_with_its_own_statistics_and_what_is_missing_is_counted() -> None:
    """Cases 13 and 64: of four attempts one sampled nothing and one has no reward; 1 and 0 are left, ±0.7071."""
    empty = Trajectory(session_id="empty", reward=0.5)
    scored = group("g", chain([None], 1.0, session_id="a"), empty, chain([None], None, session_id="lost"),
                   chain([None], 0.5, session_id="b"), chain([None], 0.0, session_id="c"))  # fmt: skip
    prepared = prepare(scored, advantage="dr_grpo")
    assert outcomes(prepared) == {
        "a": "trained", "empty": "no_trainable_tokens", "lost": "missing_reward", "b": "trained", "c": "trained",
    }  # fmt: skip
    assert [row.advantages[1] for row in prepared.batch.rows] == [0.5, 0.0, -0.5]


@step_estimator()
def forgets_a_call(groups: Any) -> Any:
    return [[[1.0] for _ in of_group] for of_group in groups]


@step_estimator()
def forgets_a_group(groups: Any) -> Any:
    return []


@pytest.mark.parametrize(
    ("estimate", "message"),
    [
        (forgets_a_call, "1 values for 2 calls"),
        (forgets_a_group, "0 values for 1 groups"),
        (lambda rewards_G: [0.0] * len(rewards_G), "where the reward is missing; give None"),
        (lambda rewards_G: [math.nan, None], "not finite"),
    ],
)
def test_an_estimator_that_breaks_its_contract_is_named_for_it(estimate: Any, message: str) -> None:
    scored = group("g", chain([None, None], 1.0, session_id="a"), chain([None, None], None, session_id="b"))
    with pytest.raises(TrainerError, match=message):
        prepare(scored, advantage=estimate)


def test_a_function_of_rewards_is_an_estimator_as_it_stands() -> None:
    prepared = prepare(
        group("g", chain([None, None], 3.0, session_id="a"), chain([None], 1.0, session_id="b")),
        advantage=lambda rewards_G: [reward - 2.0 for reward in rewards_G],
    )
    assert [row.advantages for row in prepared.batch.rows] == [[0.0, 1.0, 1.0, 0.0, 1.0, 1.0], [0.0, -1.0, -1.0]]


def test_groups_left_out_for_want_of_signal_are_not_shown_to_an_estimator_of_a_step() -> None:
    """Two groups are asked about one at a time, for their signal; then one of them is estimated, or both."""
    seen: list[list[float]] = []

    @step_estimator()
    def watching(groups: Any) -> Any:
        seen.append([attempt.reward for of_group in groups for attempt in of_group])
        return [[attempt.of_all_calls(attempt.reward) for attempt in of_group] for of_group in groups]

    flat = group("f", chain([None], 0.0, session_id="f0"), chain([None], 0.0, session_id="f1"))
    mixed = group("m", chain([None], 1.0, session_id="m0"), chain([None], 0.0, session_id="m1"))
    prepare(flat, mixed, advantage=watching, zero_variance="drop")
    prepare(flat, mixed, advantage=watching)
    assert seen == [[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0, 1.0, 0.0]]


def test_an_estimator_sees_the_tokens_of_each_call_that_are_trained() -> None:
    """The first call of `a` is too old, and all of `cut` is masked; what they earned is seen all the same."""
    seen: list[Attempt] = []

    @step_estimator(zeros_are_flat=False)
    def watching(groups: Any) -> Any:
        seen.extend(attempt for of_group in groups for attempt in of_group)
        return [[attempt.of_all_calls(1.0) for attempt in of_group] for of_group in groups]

    a = chain([0.25, None], 1.0, session_id="a", size=3)
    a.rows[0].versions = [type(a.rows[0].versions[0])(-2, 1, 4), type(a.rows[0].versions[0])(0, 5, 8)]
    cut = chain([None], 0.0, session_id="cut", stop_reason="max_tokens")
    prepare(group("g", a, cut), advantage=watching, overlong="mask")
    assert [(one.reward, list(one.call_rewards), list(one.call_tokens)) for one in seen] == [
        (1.0, [0.25, 0.0], [0, 3]),
        (0.0, [0.0], [0]),
    ]


@given(
    groups=st.lists(st.lists(trees(st.integers(0, 3)), min_size=1, max_size=4), min_size=1, max_size=3),
    data=st.data(),
    advantage=st.sampled_from(["grpo", "reinforce_plus_plus", "leave_out_returns", "gae"]),
    zero_variance=st.sampled_from(["keep", "drop"]),
    overlong=st.sampled_from(["keep", "mask"]),
)
@settings(max_examples=40)
def test_every_sampled_token_is_trained_once_or_counted_under_a_reason(
    groups: list[list[Trajectory]], data: st.DataObject, advantage: str, zero_variance: str, overlong: str
) -> None:
    """Invariants 2 and 8, for trees of calls of versions 0 to 3, trained from 3 with K = 1."""
    scored = []
    for number, trajectories in enumerate(groups):
        for index, one in enumerate(trajectories):
            one.session_id = f"{number}-{index}"
            one.stop_reason = data.draw(st.sampled_from(["done", "done", "max_turns"]))
            one.reward = data.draw(st.sampled_from([one.reward, one.reward, None]))
        scored.append(group(str(number), *trajectories))
    prepared = prepare(*scored, advantage=advantage, version=3, zero_variance=zero_variance, overlong=overlong)
    sampled = sum(len(one.token_ids) for of_group in groups for each in of_group for one in each.calls)
    assert prepared.batch.num_tokens + sum(prepared.dropped_tokens.values()) == sampled
    assert sum(prepared.lags.values()) == prepared.batch.num_tokens
    assert max(prepared.lags, default=0) <= 1
    by_session = {s.session_id: s for of_group in prepared.settlements.values() for s in of_group}
    assert by_session.keys() == {one.session_id for of_group in groups for one in of_group}
    for session_id, settlement in by_session.items():
        rows = [row for row in prepared.batch.rows if row.session_id == session_id]
        assert settlement.tokens == sum(sum(row.loss_mask) for row in rows)
        assert (settlement.outcome == "trained") == bool(rows)
    for row in prepared.batch.rows:
        assert all(value == 0.0 for value, on in zip(row.advantages, row.loss_mask, strict=True) if not on)
        assert all(value == 0.0 for value, on in zip(row.rewards, row.loss_mask, strict=True) if not on)
