"""How often and how soon a part is started again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.supervision import Restarts, SupervisionConfig

POLICY = SupervisionConfig(max_restarts=3, window_s=100.0, backoff_s=1.0, backoff_max_s=3.0)


def test_each_restart_waits_twice_as_long_up_to_the_longest_and_then_there_is_none():
    restarts = Restarts(POLICY)
    assert [restarts.after_failure(float(now), jitter=0.0) for now in range(4)] == [1.0, 2.0, 3.0, None]
    assert restarts.count == 3


def test_jitter_takes_up_to_half_of_the_wait():
    assert Restarts(POLICY).after_failure(0.0, jitter=1.0) == 0.5


def test_restarts_that_are_older_than_the_window_count_no_more():
    restarts = Restarts(POLICY)
    for now in (0.0, 40.0, 80.0):
        restarts.after_failure(now, jitter=0.0)
    assert restarts.after_failure(99.9, jitter=0.0) is None
    assert restarts.after_failure(100.0, jitter=0.0) == 3.0
    assert restarts.after_failure(139.0, jitter=0.0) is None


def test_with_no_restarts_the_first_death_is_the_last():
    assert Restarts(SupervisionConfig(max_restarts=0)).after_failure(0.0, jitter=0.5) is None


def test_a_longest_wait_below_the_first_one_is_refused():
    with pytest.raises(ValidationError, match="backoff_max_s is 1 and backoff_s is 2"):
        SupervisionConfig(backoff_s=2.0, backoff_max_s=1.0)


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 1)), max_size=60),
    st.integers(0, 5),
    st.floats(0.1, 20),
    st.floats(0, 20),
)
def test_no_window_ever_has_more_restarts_than_its_budget_and_no_wait_leaves_its_bounds(
    failures: list[tuple[float, float]], max_restarts: int, backoff_s: float, more_s: float
):
    policy = SupervisionConfig(
        max_restarts=max_restarts, window_s=100.0, backoff_s=backoff_s, backoff_max_s=backoff_s + more_s
    )
    restarts, now, begun = Restarts(policy), 0.0, []
    for pause, jitter in failures:
        now += pause
        wait_s = restarts.after_failure(now, jitter=jitter)
        recent = [moment for moment in begun if moment > now - 100.0]
        assert (wait_s is None) == (len(recent) >= max_restarts)
        if wait_s is not None:
            begun.append(now)
            assert backoff_s / 2 <= wait_s <= policy.backoff_max_s
    assert restarts.count == len(begun)
