"""The figures of an evaluation, against numbers worked by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.evaluate.records import EpisodeResult, Interval
from agentrl.evaluate.statistics import by_task, clustered_interval, pass_at_k, share_interval, summarise
from agentrl.types import StopReason


def episode(task_id: str, sample: int, reward: float | None, stop: StopReason = StopReason.DONE) -> EpisodeResult:
    return EpisodeResult(task_id=task_id, sample=sample, session_id="s", reward=reward, stop_reason=stop, turns=2)


@pytest.mark.parametrize(
    ("samples", "successes", "k", "expected"),
    [(4, 1, 1, 1 / 4), (4, 1, 4, 1.0), (4, 2, 2, 1 - 1 / 6), (5, 0, 3, 0.0), (3, 3, 1, 1.0), (10, 3, 5, 1 - 21 / 252)],
)
def test_pass_at_k_by_hand(samples: int, successes: int, k: int, expected: float) -> None:
    assert pass_at_k(samples, successes, k) == pytest.approx(expected, abs=1e-12)


@given(outcomes=st.lists(st.booleans(), min_size=1, max_size=7), data=st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_success(outcomes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    subsets = list(itertools.combinations(outcomes, k))
    expected = sum(any(subset) for subset in subsets) / len(subsets)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected, abs=1e-12)


def test_pass_at_more_than_there_are_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@3 needs at least 3 samples of a task, there are 2"):
        pass_at_k(2, 1, 3)


def test_the_interval_of_task_means_by_hand() -> None:
    # stdev of 0, 0, 1, 1 is sqrt(1/3); over sqrt(4) that is 0.288675; times 1.959964 it is 0.565793
    found = clustered_interval([0.0, 0.0, 1.0, 1.0])
    assert (found.mean, found.low, found.high) == pytest.approx((0.5, 0.5 - 0.565793, 0.5 + 0.565793), abs=1e-6)


def test_one_task_says_nothing_of_others() -> None:
    assert clustered_interval([0.7]) == Interval(0.7, None, None)


def test_the_interval_of_shares_is_wilsons() -> None:
    # 10 successes of 10: the lower bound is n / (n + z^2) = 10 / 13.841459 = 0.722467
    found = share_interval([1.0] * 10)
    assert (found.mean, found.low, found.high) == pytest.approx((1.0, 0.722467, 1.0), abs=1e-6)


def test_a_missing_reward_is_in_no_figure_but_counted_by_reason() -> None:
    episodes = [
        episode("a", 0, 1.0),
        episode("a", 1, None, StopReason.ENV_ERROR),
        episode("b", 0, 0.0),
        episode("b", 1, 1.0),
        episode("c", 0, None, StopReason.POLICY_ERROR),
    ]
    found = summarise(episodes, success_reward=1.0, ks=[1, 2])
    assert (found.tasks, found.episodes) == (2, 3)
    assert found.missing == {"env_error": 1, "policy_error": 1}
    assert found.reward is not None
    assert found.reward.mean == 0.75  # mean of the task means 1 and 1/2
    assert found.pass_at == {1: 0.75, 2: 1.0}  # pass@2 of b alone, which has two rewards


def test_without_any_reward_there_is_no_figure() -> None:
    found = summarise([episode("a", 0, None, StopReason.ENV_ERROR)], success_reward=1.0, ks=[1])
    assert (found.reward, found.success, found.pass_at, found.tasks) == (None, None, {}, 0)


def test_a_task_is_described_by_its_episodes() -> None:
    (found,) = by_task([episode("a", 0, 0.5), episode("a", 1, 1.0, StopReason.MAX_TURNS)], success_reward=1.0)
    assert (found.samples, found.successes, found.mean_reward) == (2, 1, 0.75)
    assert found.stop_reasons == {"done": 1, "max_turns": 1}
