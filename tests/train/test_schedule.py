"""The schedule by itself: bounds that hold whenever groups finish, books that close once, a position that is enough."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.store.base import GroupRecord
from agentrl.train.schedule import OpenGroup, Rules, Schedule
from agentrl.train.task_source import IteratedTasks
from agentrl.types import Task


def numbered() -> IteratedTasks:
    return IteratedTasks(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count())


def a_schedule(**rules: Any) -> Schedule:
    return Schedule(Rules(**{"max_lag": 1, "groups_per_step": 2, "steps": 100, **rules}), numbered())


def admitted(schedule: Schedule) -> list[OpenGroup]:
    return list(iter(schedule.admit, None))


def record_of(group: OpenGroup) -> GroupRecord:
    return GroupRecord(group_id=group.group_id, task=group.task, admitted_at_version=group.admitted_at)


def finish(schedule: Schedule, groups: list[OpenGroup]) -> None:
    for group in groups:
        schedule.finish(group.group_id)


def accept_next(schedule: Schedule, wanted: int) -> str | None:
    if (picked := schedule.pick(wanted)) is None:
        return None
    schedule.accept(picked.group_id)
    return picked.task.id


def test_as_many_groups_are_open_as_can_be_trained_within_the_bound() -> None:
    schedule = a_schedule(max_lag=1, groups_per_step=2)
    first = admitted(schedule)
    assert [group.group_id for group in first] == ["000000-t0", "000001-t1", "000002-t2", "000003-t3"]
    finish(schedule, first[:2])
    assert [accept_next(schedule, 2), accept_next(schedule, 1)] == ["t0", "t1"]
    assert admitted(schedule) == [], "they are open until their weights are published"
    schedule.version = 1
    schedule.settle("000000-t0")
    assert [(group.task.id, group.admitted_at) for group in admitted(schedule)] == [("t4", 1)]


def test_fewer_are_open_when_the_configuration_says_so() -> None:
    assert len(admitted(a_schedule(max_lag=4, groups_per_step=2, max_groups=3))) == 3


def test_nothing_is_admitted_after_the_last_step() -> None:
    schedule = a_schedule(steps=1)
    schedule.version = 1
    assert admitted(schedule) == []


def test_capacity_after_a_resume_is_the_capacity_of_a_fresh_start() -> None:
    """Case 62: batch 4, lag 1 admits 8 groups both at version 0 and when resuming at version 10, not 48."""
    schedule = a_schedule(max_lag=1, groups_per_step=4)
    assert schedule.capacity == 8
    schedule.restore({**schedule.position(), "version": 10, "next_group": 40})
    assert schedule.capacity == 8
    schedule.adopt(
        GroupRecord(group_id=f"{n:06d}-t{n}", task=Task(id=f"t{n}"), admitted_at_version=9) for n in (38, 39)
    )
    assert (schedule.capacity, len(admitted(schedule)), schedule.version) == (6, 6, 10)


def test_finished_groups_are_trained_past_a_slow_one() -> None:
    schedule = a_schedule(order="finished")
    slow, *others = admitted(schedule)
    finish(schedule, others[::-1])
    assert [accept_next(schedule, 2), accept_next(schedule, 1)] == ["t1", "t2"], "the oldest of those that are whole"
    schedule.finish(slow.group_id)
    assert accept_next(schedule, 1) == "t0"


def test_in_the_order_of_admission_a_slow_group_is_waited_for() -> None:
    schedule = a_schedule(order="admitted")
    slow, *others = admitted(schedule)
    finish(schedule, others)
    assert accept_next(schedule, 2) is None
    schedule.finish(slow.group_id)
    assert [accept_next(schedule, 2), accept_next(schedule, 1)] == ["t0", "t1"]


def test_a_slow_group_is_passed_over_until_that_would_make_it_too_old() -> None:
    """K = 2 and two groups under way instead of three: the slow one can be passed over twice."""
    schedule = a_schedule(order="due", max_lag=2, groups_per_step=1, max_groups=2)
    slow, *_ = admitted(schedule)
    for version, passed in ((0, "t1"), (1, "t2")):
        finish(schedule, [group for group in schedule.open_groups if group != slow])
        assert accept_next(schedule, 1) == passed
        schedule.version = version + 1
        schedule.settle(schedule.open_groups[-1].group_id)
        admitted(schedule)
    finish(schedule, [group for group in schedule.open_groups if group != slow])
    assert accept_next(schedule, 1) is None
    schedule.finish(slow.group_id)
    assert accept_next(schedule, 1) == "t0"


def test_the_share_that_suffices_is_rounded_up_and_never_nothing() -> None:
    rules = a_schedule(cut_tail=0.7).rules
    assert [rules.suffices(accepted, 10) for accepted in (6, 7, 8)] == [False, True, True]
    assert not a_schedule(cut_tail=0.01).rules.suffices(0, 4)
    assert not a_schedule().rules.suffices(9, 10)


def test_failures_in_a_row_are_counted_until_a_group_can_be_trained() -> None:
    schedule = a_schedule()
    first, second, third, fourth = admitted(schedule)
    finish(schedule, [first, second, third, fourth])
    schedule.drop(first.group_id)
    schedule.drop(second.group_id, stale=True)
    assert schedule.failed_in_a_row == 1, "age is no failure"
    schedule.drop(third.group_id)
    assert schedule.failed_in_a_row == 2
    schedule.accept(fourth.group_id)
    assert schedule.failed_in_a_row == 0


def test_what_is_not_under_way_is_refused() -> None:
    schedule = a_schedule()
    group, *_ = admitted(schedule)
    with pytest.raises(ValueError, match="000000-t0 is not ready"):
        schedule.accept(group.group_id)
    schedule.finish(group.group_id)
    with pytest.raises(ValueError, match="000000-t0 is not under way"):
        schedule.finish(group.group_id)
    schedule.settle(group.group_id)
    with pytest.raises(ValueError, match="000000-t0 is not open: settled twice, or never admitted"):
        schedule.settle(group.group_id)


@pytest.mark.parametrize(
    ("group_id", "named"),
    [("000000-t0", "open already"), ("000007-x", "past the position, where group 4 is next"), ("x", "not begin with")],
)
def test_groups_that_cannot_be_this_runs_are_not_adopted(group_id: str, named: str) -> None:
    schedule = a_schedule()
    admitted(schedule)
    with pytest.raises(ValueError, match=named):
        schedule.adopt([GroupRecord(group_id=group_id, task=Task(id="t"), admitted_at_version=0)])


RULES = st.builds(
    Rules,
    max_lag=st.integers(0, 3),
    groups_per_step=st.integers(1, 4),
    steps=st.just(8),
    order=st.sampled_from(["finished", "due", "admitted"]),
    max_groups=st.none() | st.integers(4, 9),
    requeue_stale=st.booleans(),
)


class Simulation:
    """A loop over a schedule, in which chance says what finishes when, and what becomes of it."""

    def __init__(self, rules: Rules, seed: int, *, max_replaced: int = 2, restored: Callable[[int], bool]) -> None:
        self.rules = rules
        self.schedule = Schedule(rules, numbered())
        self.chance = random.Random(seed)
        self.max_replaced = max_replaced
        self.restored = restored  # before which versions another schedule takes over
        self.groups: list[OpenGroup] = []
        self.outcomes: list[tuple[int, str, int]] = []  # (number, outcome, version)
        self.ready: set[str] = set()

    def run(self) -> Simulation:
        self.admit()
        for version in range(self.rules.steps):
            if self.restored(version):
                self.take_over()
            accepted = list(self.accepted(version))
            self.schedule.version = version + 1
            for group in accepted:
                self.schedule.settle(group.group_id)
                self.outcomes.append((group.number, "trained", version))
            self.admit()
        return self

    def accepted(self, version: int) -> Iterator[OpenGroup]:
        wanted = self.rules.groups_per_step
        taken: set[str] = set()
        while wanted:
            if (picked := self.schedule.pick(wanted)) is None:
                under_way = [group for group in self.schedule.open_groups if group.group_id not in self.ready | taken]
                assert under_way, "the step would wait for ever"
                chosen = self.chance.choice(under_way)
                self.ready.add(chosen.group_id)
                self.schedule.finish(chosen.group_id)
            elif self.judge(picked, version):
                taken.add(picked.group_id)
                wanted -= 1
                yield picked
            assert len(self.schedule.open_groups) <= self.rules.limit

    def judge(self, picked: OpenGroup, version: int) -> bool:
        lag = version - picked.admitted_at
        assert lag <= self.rules.max_lag or self.rules.order == "finished"
        fate = self.chance.random()
        self.ready.remove(picked.group_id)
        if lag > self.rules.max_lag:
            self.drop(picked, "stale", version)
        elif fate < 0.2:
            self.drop(picked, "failed", version)
        elif fate < 0.5 and self.schedule.replaced < self.max_replaced:
            self.drop(picked, "replaced", version)
        else:
            self.schedule.accept(picked.group_id)
            return True
        return False

    def drop(self, group: OpenGroup, outcome: str, version: int) -> None:
        self.schedule.drop(group.group_id, stale=outcome == "stale", replaced=outcome == "replaced")
        self.outcomes.append((group.number, outcome, version))
        self.admit()

    def admit(self) -> None:
        self.groups += admitted(self.schedule)
        assert len(self.schedule.open_groups) <= self.rules.limit

    def take_over(self) -> None:
        """By another schedule, from what a store would hold."""
        records = [record_of(group) for group in self.schedule.open_groups]
        position = json.loads(msgspec.json.encode(self.schedule.position()))
        self.schedule = Schedule(self.rules, numbered())
        self.schedule.restore(position)
        finish(self.schedule, [one for one in self.schedule.adopt(records) if one.group_id in self.ready])


@given(rules=RULES, seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_whenever_groups_finish_the_bounds_hold_and_every_admission_has_one_outcome(rules: Rules, seed: int) -> None:
    done = Simulation(rules, seed, restored=lambda version: False).run()
    assert [group.number for group in done.groups] == list(range(len(done.groups)))
    closed = Counter(number for number, _, _ in done.outcomes)
    still_open = {group.number for group in done.schedule.open_groups}
    assert set(closed.values()) <= {1}
    assert set(closed) | still_open == set(range(len(done.groups)))
    assert not set(closed) & still_open
    trained = Counter(version for _, outcome, version in done.outcomes if outcome == "trained")
    assert trained == dict.fromkeys(range(rules.steps), rules.groups_per_step)


@given(rules=RULES, seed=st.integers(0, 2**32))
@settings(max_examples=100, deadline=None)
def test_a_task_that_was_too_old_comes_back_once_for_each_time(rules: Rules, seed: int) -> None:
    done = Simulation(rules, seed, restored=lambda version: False).run()
    stale = Counter(done.groups[number].task.id for number, outcome, _ in done.outcomes if outcome == "stale")
    again = Counter(group.task.id for group in done.groups)
    waiting = Counter(task["id"] for task in done.schedule.position()["requeued"])
    for task_id, times in again.items():
        assert times - 1 + waiting[task_id] == (stale[task_id] if rules.requeue_stale else 0)


@given(rules=RULES, seed=st.integers(0, 2**32), often=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_another_driver_goes_on_exactly_as_this_one_would_have(rules: Rules, seed: int, often: int) -> None:
    def run(restored: Callable[[int], bool]) -> Simulation:
        return Simulation(rules, seed, restored=restored).run()

    unbroken, broken = run(lambda version: False), run(lambda version: version % often == 0)
    assert broken.groups == unbroken.groups
    assert broken.outcomes == unbroken.outcomes
    assert broken.schedule.position() == unbroken.schedule.position()


@given(rules=RULES, seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_in_the_order_of_admission_which_step_trains_what_does_not_depend_on_who_is_quick(
    rules: Rules, seed: int
) -> None:
    rules = Rules(rules.max_lag, rules.groups_per_step, rules.steps, order="admitted")
    numbers = [
        [number for number, outcome, _ in self.outcomes if outcome == "trained"]
        for self in (NoFate(rules, seed), NoFate(rules, seed + 1))
    ]
    assert numbers[0] == numbers[1] == list(range(rules.steps * rules.groups_per_step))


class NoFate(Simulation):
    """Every group can be trained."""

    def __init__(self, rules: Rules, seed: int) -> None:
        super().__init__(rules, seed, restored=lambda version: False)
        self.run()

    def judge(self, picked: OpenGroup, version: int) -> bool:
        assert version - picked.admitted_at <= self.rules.max_lag
        self.ready.remove(picked.group_id)
        self.schedule.accept(picked.group_id)
        return True
