"""The breaker: when a failing service is left alone, and how it is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentrl.breaker import Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=3, backoff_s=1.0, max_backoff_s=8.0)


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker(POLICY)
    breaker.failed(at, jitter=0, fatal=True)
    return breaker


def fail_probe(breaker: Breaker, now: float, jitter: float = 0) -> None:
    breaker.admit(now)
    breaker.failed(now, jitter=jitter)


def test_it_opens_after_the_set_number_of_failures_in_a_row() -> None:
    breaker = Breaker(POLICY)
    states = []
    for _ in range(3):
        breaker.failed(0, jitter=0)
        states.append(breaker.state(0))
    assert states == ["closed", "closed", "open"]


def test_a_success_between_failures_starts_the_count_anew() -> None:
    breaker = Breaker(POLICY)
    for _ in range(5):
        breaker.failed(0, jitter=0)
        breaker.failed(0, jitter=0)
        breaker.succeeded(0)
    assert breaker.state(0) == "closed"


def test_a_fatal_failure_opens_it_at_once() -> None:
    assert opened().state(0) == "open"


def test_it_lets_one_probe_through_when_its_wait_is_over() -> None:
    breaker = opened(at=10)
    assert (breaker.admits(10.9), breaker.state(11), breaker.admits(11)) == (False, "half_open", True)
    breaker.admit(11)
    assert not breaker.admits(11)
    with pytest.raises(RuntimeError, match="half_open"):
        breaker.admit(11)


def test_a_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.admit(1)
    breaker.succeeded(2)
    assert (breaker.state(2), breaker.retry_at) == ("closed", None)


def test_each_probe_that_fails_doubles_the_wait_up_to_the_cap() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(6):
        assert breaker.retry_at is not None
        waits.append(breaker.retry_at - now)
        now = breaker.retry_at
        fail_probe(breaker, now)
    assert waits == [1, 2, 4, 8, 8, 8]


def test_after_a_success_the_first_wait_is_short_again() -> None:
    breaker = opened()
    fail_probe(breaker, 1)
    breaker.admit(3)
    breaker.succeeded(3)
    breaker.failed(4, jitter=0, fatal=True)
    assert breaker.retry_at == 5


def test_a_service_that_begins_every_answer_and_ends_none_is_still_left_alone_for_longer_and_longer() -> None:
    breaker, now, waits = opened(), 0.0, []
    for _ in range(4):
        assert breaker.retry_at is not None
        waits.append(breaker.retry_at - now)
        now = breaker.retry_at
        breaker.admit(now)
        breaker.answering(now)
        assert breaker.admits(now)
        breaker.failed(now, jitter=0, fatal=True)
    assert waits == [1, 2, 4, 8]


def test_one_outage_that_fails_many_calls_counts_once() -> None:
    breaker = opened()
    for _ in range(100):
        breaker.failed(0.5, jitter=0, fatal=True)
    breaker.failed(1.5, jitter=0, fatal=True)  # half-open by then, and no probe has been made
    assert breaker.retry_at == 1


def test_a_call_that_began_before_it_opened_does_not_close_it() -> None:
    breaker = opened()
    breaker.succeeded(0.5)
    breaker.answering(0.5)
    assert breaker.state(0.5) == "open"


def test_a_probe_that_said_nothing_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.admit(1)
    breaker.withdrawn()
    assert (breaker.state(1), breaker.admits(1)) == ("half_open", True)


@given(jitter=st.floats(0, 1), openings=st.integers(1, 10_000))
def test_jitter_takes_at_most_half_of_a_wait_and_never_lengthens_it(jitter: float, openings: int) -> None:
    longest = min(8.0, 2.0 ** min(openings - 1, 3))
    assert longest / 2 <= POLICY.wait_s(openings, jitter) <= longest


@pytest.mark.parametrize(
    "wrong", [{"failures": 0}, {"backoff_s": 0}, {"backoff_s": 2, "max_backoff_s": 1}, {"backoff_s": float("nan")}]
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 < backoff_s <= max_backoff_s"):
        BreakerPolicy(**wrong)  # type: ignore[arg-type]


class Outages(RuleBasedStateMachine):
    """Calls that are made whenever one is admitted, and end in any way and order, before or after it opened."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(POLICY)
        self.now = 0.0
        self.early = 0  # calls under way that were made through the closed breaker
        self.probe = False
        self.silent_until = 0.0

    @rule(seconds=st.floats(0, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.breaker.admits(self.now))
    @rule()
    def call(self) -> None:
        assert self.now >= self.silent_until
        assert not self.probe
        if self.breaker.state(self.now) == "closed":
            self.early += 1
        else:
            self.probe = True
        self.breaker.admit(self.now)

    @precondition(lambda self: self.early or self.probe)
    @rule(fatal=st.booleans(), jitter=st.floats(0, 1))
    def fails(self, fatal: bool, jitter: float) -> None:
        before = self.breaker.retry_at
        self.breaker.failed(self.now, jitter=jitter, fatal=fatal)
        if self.breaker.retry_at != before:
            assert before is None or self.probe
            self.silent_until = self.now + POLICY.backoff_s / 2
            self.early, self.probe = self.early + self.probe, False
        self.early = max(0, self.early - 1)

    @precondition(lambda self: self.early or self.probe)
    @rule()
    def succeeds(self) -> None:
        was_open = self.breaker.state(self.now) == "open"
        self.breaker.succeeded(self.now)
        assert self.breaker.state(self.now) == ("open" if was_open else "closed")
        if not was_open:
            self.early, self.probe = self.early + self.probe, False
        self.early = max(0, self.early - 1)

    @precondition(lambda self: self.probe)
    @rule()
    def the_probe_is_cancelled(self) -> None:
        self.breaker.withdrawn()
        self.probe = False

    @invariant()
    def it_never_stays_shut_for_ever(self) -> None:
        assert self.probe or self.breaker.admits(self.now + POLICY.max_backoff_s)


TestOutages = Outages.TestCase
TestOutages.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
