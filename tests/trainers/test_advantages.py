"""Every estimator against numbers worked out by hand, and what holds of all of them."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl import plugins
from agentrl.errors import TrainerError
from agentrl.train.advantage import Attempt, needs_siblings, over_a_step, traits_of
from agentrl_trainers.algorithms.advantages.dr_grpo import centred_advantages
from agentrl_trainers.algorithms.advantages.leave_out_returns import leave_out_returns
from agentrl_trainers.algorithms.advantages.reinforce import rewards_alone
from agentrl_trainers.algorithms.advantages.reinforce_plus_plus import batch_whitened
from agentrl_trainers.algorithms.advantages.reinforce_plus_plus_baseline import group_mean_batch_whitened
from agentrl_trainers.algorithms.advantages.rloo import leave_one_out

BY_REWARDS = ["grpo", "dr_grpo", "rloo", "reinforce", "reinforce_plus_plus", "reinforce_plus_plus_baseline"]
COMPARING = ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "leave_out_returns"]
ALL = [*BY_REWARDS, "leave_out_returns", "gae", "distillation"]


def estimator(name: str):
    return over_a_step(plugins.load("agentrl.advantages", name))


def attempts(*rewards: float | None) -> list[Attempt]:
    """One call of one token each."""
    return [Attempt(reward) for reward in rewards]


def of_first_calls(found: list[list[list[float] | None]]) -> list[float | None]:
    return [None if one is None else one[0] for of_group in found for one in of_group]


def test_dr_grpo_takes_the_mean_away_and_divides_by_nothing() -> None:
    assert centred_advantages([1.0, None, 0.0, 0.5]) == pytest.approx([0.5, None, -0.5, 0.0])


def test_rloo_takes_away_the_mean_of_the_others() -> None:
    """1 - (0 + 0.5) / 2, 0 - (1 + 0.5) / 2, 0.5 - (1 + 0) / 2."""
    assert leave_one_out([1.0, None, 0.0, 0.5]) == pytest.approx([0.75, None, -0.75, 0.0])


def test_reinforce_is_the_reward() -> None:
    assert rewards_alone([1.0, None, 0.0, -2.5]) == [1.0, None, 0.0, -2.5]


def test_reinforce_plus_plus_is_whitened_over_the_batch_and_not_over_groups() -> None:
    """Case 20: rewards [1, 0] and [5, 4] have mean 2.5 and population variance (1.5² + 2.5² + 2.5² + 1.5²) / 4."""
    found = batch_whitened([attempts(1.0, 0.0), attempts(5.0, 4.0)])
    assert of_first_calls(found) == pytest.approx([-0.7276, -1.2127, 1.2127, 0.7276], abs=5e-5)


def test_reinforce_plus_plus_baseline_has_the_groups_mean_and_the_batchs_spread() -> None:
    """Less the means 0.5 and 3: ±0.5 and ±3, of mean 0 and variance (2 · 0.25 + 2 · 9) / 4 = 4.625."""
    found = group_mean_batch_whitened([attempts(1.0, 0.0), attempts(6.0, 0.0)])
    assert of_first_calls(found) == pytest.approx(np.array([0.5, -0.5, 3.0, -3.0]) / math.sqrt(4.625))


def test_whitening_counts_tokens_and_not_episodes() -> None:
    """One token of reward 4 and three of reward 0: mean 1, variance (9 + 3 · 1) / 4 = 3."""
    found = batch_whitened([[Attempt(4.0, (0.0,), (1,)), Attempt(0.0, (0.0,), (3,))]])
    assert of_first_calls(found) == pytest.approx([3 / math.sqrt(3), -1 / math.sqrt(3)])


def test_whitening_leaves_out_tokens_that_are_not_trained() -> None:
    """The episode of reward 100 is masked: the spread is that of 1 and 0 alone."""
    found = batch_whitened([[Attempt(1.0), Attempt(0.0), Attempt(100.0, (0.0,), (0,))]])
    assert of_first_calls(found)[:2] == pytest.approx([1.0, -1.0])


@given(st.lists(st.lists(st.tuples(st.floats(-50, 50), st.integers(1, 9)), min_size=1, max_size=4), min_size=1))
def test_whitened_advantages_have_mean_0_and_variance_1_over_the_trained_tokens(drawn) -> None:
    """By an independent sum over single tokens."""
    groups = [[Attempt(reward, (0.0,), (tokens,)) for reward, tokens in group] for group in drawn]
    rewards = np.concatenate([[reward] * tokens for group in drawn for reward, tokens in group])
    by_token = np.concatenate(
        [
            [advantages[0]] * tokens
            for group, of_group in zip(drawn, batch_whitened(groups), strict=True)
            for (_, tokens), advantages in zip(group, of_group, strict=True)
        ]
    )
    if np.ptp(rewards) > 1e-3:
        assert by_token.mean() == pytest.approx(0.0, abs=1e-6)
        assert by_token.std() == pytest.approx(1.0, abs=1e-6)
    assert np.isfinite(by_token).all()


class TestLeaveOutReturns:
    def test_a_call_is_worth_what_was_earned_from_it_on(self) -> None:
        """Rewards 1 and 0.25, of which 0.5 and 0.25 were earned at the first call.

        From the first call on: 1 and 0.25. From the second on: 1 - 0.5 = 0.5 and 0.25 - 0.25 = 0.
        """
        first = Attempt(1.0, (0.5, 0.25), (3, 3))  # 0.25 came at the end
        second = Attempt(0.25, (0.25, 0.0), (3, 3))
        assert leave_out_returns([[first, second]]) == [[[0.75, 0.5], [-0.75, -0.5]]]

    def test_of_a_sibling_that_made_fewer_calls_the_last_one_stands_in(self) -> None:
        """Returns: 1, 0.5, 0.5 against 0.5, which is the baseline of every call; and against the first call's 1."""
        long = Attempt(1.0, (0.5, 0.0, 0.0), (1, 1, 1))
        short = Attempt(0.5, (0.0,), (1,))
        assert leave_out_returns([[long, short]]) == [[[0.5, 0.0, 0.0], [-0.5]]]

    def test_without_rewards_of_calls_it_is_rloo_for_every_call(self) -> None:
        group = [Attempt(reward, (0.0,) * calls, (1,) * calls) for reward, calls in ((1.0, 3), (0.0, 1), (0.5, 2))]
        assert leave_out_returns([group]) == [[[0.75] * 3, [-0.75], [0.0] * 2]]

    def test_equal_outcomes_with_other_ways_to_them_are_a_signal(self) -> None:
        """Both earned 1, one at its first call and one at its last: only the second call tells them apart."""
        early, late = Attempt(1.0, (1.0, 0.0), (1, 1)), Attempt(1.0, (0.0, 1.0), (1, 1))
        assert leave_out_returns([[early, late]]) == [[[0.0, -1.0], [0.0, 1.0]]]

    def test_a_missing_reward_is_nobodys_sibling(self) -> None:
        group = [Attempt(1.0, (0.0,), (1,)), Attempt(None, (7.0,), (1,)), Attempt(0.0, (0.0,), (1,))]
        assert leave_out_returns([group]) == [[[1.0], None, [-1.0]]]


@pytest.mark.parametrize("name", ["gae", "distillation"])
def test_what_the_trainer_makes_is_0_on_the_driver_and_never_flat(name: str) -> None:
    found = estimator(name)
    assert found([[Attempt(1.0, (0.0, 0.0), (1, 1)), Attempt(None)]]) == [[[0.0, 0.0], None]]
    traits = traits_of(found)
    assert traits is not None
    assert (traits.by_trainer, traits.zeros_are_flat) == (True, False)


@pytest.mark.parametrize("name", ALL)
@given(groups=st.lists(st.lists(st.none() | st.floats(-100, 100), max_size=6), max_size=4))
def test_a_missing_reward_stays_missing_and_shifts_nobody(name: str, groups: list[list[float | None]]) -> None:
    """Case 18: the others get what they get when it is not there at all."""
    found = estimator(name)
    with_gaps = found([attempts(*group) for group in groups])
    without = found([attempts(*(reward for reward in group if reward is not None)) for group in groups])
    assert [[one is None for one in of_group] for of_group in with_gaps] == [
        [reward is None for reward in group] for group in groups
    ]
    known = [value for value in of_first_calls(with_gaps) if value is not None]
    assert known == pytest.approx(of_first_calls(without))
    assert all(math.isfinite(value) for value in known)


@pytest.mark.parametrize("name", BY_REWARDS)
def test_every_call_of_an_episode_has_the_episodes_advantage(name: str) -> None:
    group = [Attempt(1.0, (0.5, 0.5, 0.0), (2, 1, 4)), Attempt(0.0, (0.0,), (3,))]
    [[first, second]] = estimator(name)([group])
    assert first is not None
    assert second is not None
    assert (len(first), len(set(first)), len(second)) == (3, 1, 1)


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("reward", [0.1, 0.7, -3.0])
def test_equal_rewards_and_a_lone_one_have_advantage_0(name: str, reward: float) -> None:
    """Cases 18 and 27: 0.1 + 0.2 and 0.3 differ by rounding; whoever is alone has no baseline."""
    found = estimator(name)
    assert of_first_calls(found([attempts(*[reward] * 8)])) == [0.0] * 8
    assert of_first_calls(found([attempts(reward, reward + 1e-9, reward)])) == [0.0] * 3
    assert of_first_calls(found([attempts(reward)])) == [0.0]


@pytest.mark.parametrize("name", COMPARING)
def test_one_odd_reward_keeps_the_whole_group(name: str) -> None:
    """Case 27: a leave-one-out filter may drop just the odd one."""
    found = of_first_calls(estimator(name)([attempts(0.0, *[0.95] * 7)]))
    assert found[0] is not None
    assert found[0] < 0
    assert len({round(value, 9) for value in found[1:] if value}) == 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reward", [math.nan, math.inf])
def test_a_reward_that_is_no_number_is_refused(name: str, reward: float) -> None:
    with pytest.raises(TrainerError, match=r"attempt 1 of a group of 2 has the reward (nan|inf)"):
        estimator(name)([attempts(1.0, reward)])


def test_those_that_compare_siblings_are_known_by_what_they_do() -> None:
    assert [name for name in ALL if needs_siblings(plugins.load("agentrl.advantages", name))] == COMPARING


def by_tails(group: list[Attempt]) -> list[list[float]]:
    """Turn-level advantages by adding up what comes from each call on, and the rest at the end."""
    tails = []
    for one in group:
        assert one.reward is not None
        rest = one.reward - sum(one.call_rewards)
        tails.append([sum(one.call_rewards[call:]) + rest for call in range(one.num_calls)])
    found = []
    for index, own in enumerate(tails):
        others = [tail for at, tail in enumerate(tails) if at != index]
        found.append(
            [
                value - sum(tail[call] if call < len(tail) else tail[-1] for tail in others) / len(others)
                for call, value in enumerate(own)
            ]
        )
    return found


halves = st.integers(-8, 8).map(lambda number: number / 2)
"""Sums of them are exact, so that equal returns are equal."""

episodes = st.builds(
    lambda reward, calls: Attempt(reward, tuple(calls), (1,) * len(calls)),
    halves,
    st.lists(halves, min_size=1, max_size=5),
)


@given(st.lists(episodes, min_size=2, max_size=5))
def test_turn_level_advantages_are_those_of_tails_and_siblings(group: list[Attempt]) -> None:
    [found] = leave_out_returns([group])
    for ours, theirs in zip(found, by_tails(group), strict=True):
        assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=25, deadline=None)
@given(groups=st.lists(st.lists(episodes, min_size=1, max_size=4), min_size=1, max_size=3), random=st.randoms())
def test_the_order_of_groups_and_of_attempts_changes_no_attempts_advantage(
    name: str, groups: list[list[Attempt]], random: Random
) -> None:
    """Case 21."""
    found = estimator(name)
    places = [(at, index) for at, group in enumerate(groups) for index in range(len(group))]
    order = random.sample(range(len(groups)), len(groups))
    within = [random.sample(range(len(group)), len(group)) for group in groups]
    shuffled = found([[groups[at][index] for index in within[at]] for at in order])
    back = {(at, index): shuffled[g][i] for g, at in enumerate(order) for i, index in enumerate(within[at])}
    straight = found(groups)
    for at, index in places:
        assert back[at, index] == pytest.approx(straight[at][index])
