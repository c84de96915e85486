"""Groups some of whose attempts fail or take long: waited for, gone on without, or filled up, as the run says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.rollout.completeness import Attendance, Completeness
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.group import run_group
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Episode, Group, StopReason, Task

TASK = Task(id="t", env_id="e")


def episode(session_id: str = "s", stop_reason: StopReason = StopReason.DONE) -> Episode:
    return Episode(session_id=session_id, task=TASK, stop_reason=stop_reason, reward=None)


class Attempts:
    """`fails` says how often each index fails before it goes well; those in `hangs` never end."""

    def __init__(self, fails: Mapping[int, int] | None = None, hangs: frozenset[int] = frozenset()) -> None:
        self.fails = dict(fails or {})
        self.hangs = hangs
        self.played: list[int] = []
        self.cleaned_up: list[int] = []

    async def play(self, index: int) -> Episode:
        self.played.append(index)
        if index in self.hangs:
            try:
                await asyncio.Event().wait()
            finally:
                self.cleaned_up.append(index)
        failed = self.fails.get(index, 0) > 0
        self.fails[index] = self.fails.get(index, 0) - 1
        return episode(f"{index}-{len(self.played)}", StopReason.ENV_CRASH if failed else StopReason.DONE)

    async def group(self, size: int, *, have: Mapping[int, Episode] | None = None, **rules: Any) -> Group:
        async with asyncio.timeout(10):
            return await run_group(
                "g", TASK, size=size, version=0, play=self.play, have=have, completeness=Completeness(**rules)
            )


async def test_failed_attempts_stay_in_their_places_where_all_are_waited_for() -> None:
    group = await Attempts(fails={1: 1}).group(3)
    assert [one.stop_reason for one in group.episodes] == ["done", "env_crash", "done"]
    assert (group.retried, group.cut) == ([], [])


async def test_with_a_minimum_those_that_are_late_are_cut() -> None:
    attempts = Attempts(hangs=frozenset({0, 3}))
    group = await attempts.group(4, minimum=2, patience_s=0.0)
    assert [one.session_id[0] for one in group.episodes] == ["1", "2"]
    assert group.cut == [0, 3]
    assert sorted(attempts.cleaned_up) == [0, 3], "a group is whole when nothing of it is left running"


async def test_those_that_failed_do_not_make_up_the_minimum() -> None:
    attempts = Attempts(fails={0: 1}, hangs=frozenset({2}))
    waiting = asyncio.create_task(attempts.group(3, minimum=2, patience_s=0.0))
    for _ in range(20):  # of the event loop's turns, far more than the two others need
        await asyncio.sleep(0)
    assert not waiting.done()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert attempts.cleaned_up == [2]


async def test_attempts_that_another_driver_finished_are_among_the_minimum() -> None:
    attempts = Attempts(hangs=frozenset({2}))
    group = await attempts.group(3, have={0: episode("old-0"), 1: episode("old-1")}, minimum=2, patience_s=0.0)
    assert [one.session_id for one in group.episodes] == ["old-0", "old-1"]
    assert group.cut == [2]


async def test_failed_attempts_are_replaced_within_the_bound_of_the_group() -> None:
    attempts = Attempts(fails={0: 1, 1: 9})
    group = await attempts.group(3, replacements=3)
    assert [one.stop_reason for one in group.episodes] == ["done", "env_crash", "done"]
    assert [one.stop_reason for one in group.retried] == ["env_crash"] * 3
    assert sorted(attempts.played) == [0, 0, 1, 1, 1, 2]


async def test_a_fault_of_the_rollout_ends_the_group_whatever_is_cut() -> None:
    async def play(index: int) -> Episode:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        await run_group("g", TASK, size=2, version=0, play=play, completeness=Completeness(minimum=1))


ENDS = st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=12)


@given(ends=ENDS, minimum=st.none() | st.integers(1, 4), patience_s=st.floats(0, 5), replacements=st.integers(0, 3))
def test_patience_begins_with_the_minimum_and_fresh_attempts_keep_to_their_bound(
    ends: list[tuple[bool, float]], minimum: int | None, patience_s: float, replacements: int
) -> None:
    attendance = Attendance(Completeness(minimum=minimum, patience_s=patience_s, replacements=replacements))
    now, well, again, reached = 0.0, 0, 0, None
    for ended_well, later in ends:
        now += later
        replaced = attendance.ended(well=ended_well, now=now)
        assert not (replaced and ended_well)
        well, again = well + ended_well, again + replaced
        if reached is None and minimum is not None and well >= minimum:
            reached = now
        assert attendance.late_at == (None if reached is None else reached + patience_s)
    failed = sum(not ended_well for ended_well, _ in ends)
    assert again == min(failed, replacements)


def a_worker(**settings: Any) -> tuple[RolloutWorker, ScriptedGateway]:
    gateway = ScriptedGateway(lambda messages: "x")
    return RolloutWorker(RolloutConfig(**settings), "unused", "unused", gateway=gateway), gateway


async def test_what_is_cut_is_sealed_as_cancelled_and_an_evaluation_waits_for_all() -> None:
    worker, gateway = a_worker(incomplete="minimum", minimum_group_size=1, patience_s=0.0, concurrency=1)
    task = Task(id="t", env_id="hostile_envs:CountsSteps", options={"steps": 1})
    group = await worker.run_group("g", task, size=3, version=0)
    assert (len(group.episodes), group.cut) == (1, [1, 2])
    assert all(session.stop_reason in ("done", "cancelled") for session in gateway.sessions)
    assert len((await worker.run_group("e", task, size=3, version=0, mode="eval")).episodes) == 3


async def test_a_failure_that_is_not_played_again_by_itself_is_replaced() -> None:
    worker, gateway = a_worker(incomplete="refill", max_replacements=1, episode_retries=0)
    group = await worker.run_group("g", Task(id="t", env_id="hostile_envs:Hostile", options={"how": "raise_one"}),
                                   size=1, version=0)  # fmt: skip
    assert [one.stop_reason for one in (*group.retried, *group.episodes)] == ["env_error", "env_error"]
    assert len(gateway.sessions) == 2


def test_a_minimum_that_no_group_has_is_refused() -> None:
    with pytest.raises(ValueError, match="minimum_group_size = 9 is more than group_size = 8"):
        RolloutConfig(incomplete="minimum", minimum_group_size=9)
    assert RolloutConfig(group_size=1).minimum_group_size == 2, "which nobody asked for"
