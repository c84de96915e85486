"""The loop's benchmark: its arithmetic by hand, its work the same every time, its engine's clock, and a tiny run."""

from __future__ import annotations

import pytest

from agentrl.types import Call, Sampling, Trajectory, VersionSpan
from bench.async_loop import scripted
from bench.async_loop.arithmetic import Played, bound_of, compared, cpu_ms_per_turn, shares
from bench.async_loop.paced_engine import PacedEngine
from bench.async_loop.window import played, rebuilt
from bench.async_loop.workload import LogNormal, Plan, Workload

ALONE = Played(seconds=100.0, groups=400)  # 2 s for a step of 8
SYNC = Played(
    seconds=60.0,
    groups=80,
    steps=10,
    phases={"wait": 40.0, "batch": 1.0, "train": 15.0, "publish": 4.0},
    engine_busy_s=40.0,
)


def call(started: float, ended: float, *, got: float = 0.0, prompt: int = 10, spans: tuple[int, ...] = (4,)) -> Call:
    """`spans`: how many tokens each version sampled, from version 0 on."""
    versions, start = [], 0
    for version, length in enumerate(spans):
        versions.append(VersionSpan(version, start, start + length))
        start += length
    return Call(
        call_id="c",
        prompt_token_ids=[1] * prompt,
        prompt_digest="",
        token_ids=[2] * start,
        logprobs=None,
        versions=versions,
        finish_reason="stop",
        engine_id="engine-0",
        sampling=Sampling(),
        message={},
        started_at=started,
        ended_at=ended,
        moments=[int(got * 1e6), int(got * 1e6), 0],
    )


def test_the_bound_is_the_slower_side_alone() -> None:
    bound = bound_of(ALONE, SYNC, groups_per_step=8)
    assert (bound.rollout_s, bound.train_s, bound.step_s) == (2.0, 1.5, 2.0)


def test_a_mode_is_compared_with_the_bound_and_with_the_synchronous_loop() -> None:
    """Ten steps in 22 s: 2.2 s a step where 2 s are possible, and the synchronous one takes 6."""
    found = compared(
        Played(seconds=22.0, groups=80, steps=10, phases={"wait": 5.5}, engine_busy_s=20.9),
        SYNC,
        bound_of(ALONE, SYNC, groups_per_step=8),
    )
    assert found.step_s == pytest.approx(2.2)
    assert found.bound_ratio == pytest.approx(1 / 1.1)
    assert found.gain_over_sync == pytest.approx(60 / 22)
    assert found.groups_per_hour == pytest.approx(80 / 22 * 3600)
    assert found.trainer_waits == pytest.approx(0.25)
    assert found.engines_idle == pytest.approx(0.05)


def test_the_cost_of_a_turn_is_that_of_the_loops_own_processes() -> None:
    ran = Played(seconds=1.0, groups=1, turns=500, cpu_s={"driver": 0.6, "gateway": 0.9})
    assert cpu_ms_per_turn(ran) == pytest.approx(3.0)
    assert cpu_ms_per_turn(ran, ("gateway",)) == pytest.approx(1.8)


def test_shares_are_in_order_and_of_nothing_there_are_none() -> None:
    assert shares({"1": 1, "0": 3}) == {"0": 0.75, "1": 0.25}
    assert shares({}) == {}


def test_a_window_counts_an_engine_as_busy_once_and_a_call_as_far_as_it_is_within() -> None:
    """Window 10..20. Calls hold an engine in 8..12, 11..14 and 18..23: busy 10..14 and 18..20."""
    calls = [call(7.0, 12.0, got=1.0), call(11.0, 14.0), call(18.0, 23.0)]
    steps = [
        {"phases": {"wait": 1.0, "train": 2.0}, "staleness": {"0": 3}, "dropped_tokens": {}},
        {"phases": {"wait": 0.5, "train": 2.0}, "staleness": {"0": 1, "1": 2}, "dropped_tokens": {"stale": 4}},
    ]
    found = played(10.0, 20.0, groups=4, steps=steps, trajectories=[Trajectory(session_id="s", calls=calls)])
    assert found.engine_busy_s == pytest.approx(6.0)
    assert found.sequences == pytest.approx((2 + 3 + 2) / 10)
    assert (found.turns, found.tokens) == (2, 8)  # the third ended later
    assert found.phases == {"wait": 1.5, "batch": 0.0, "train": 4.0, "publish": 0.0}
    assert (found.staleness, found.dropped_tokens) == ({"0": 4, "1": 2}, {"stale": 4})


def test_each_swap_under_a_call_drops_its_prompt_and_what_was_sampled_so_far() -> None:
    assert rebuilt(call(0.0, 1.0, prompt=10, spans=(4,))) == 0
    assert rebuilt(call(0.0, 1.0, prompt=10, spans=(4, 3, 1))) == (10 + 4) + (10 + 7)


def test_the_work_is_the_same_in_every_process_and_has_a_long_tail_within_its_bound() -> None:
    lengths = LogNormal(40.0, 0.8, 300.0)
    assert lengths.draw("7.0.1") == lengths.draw("7.0.1") != lengths.draw("7.1.1")
    drawn = sorted(lengths.draw(str(number)) for number in range(2000))
    assert 36 < drawn[1000] < 44
    assert drawn[-1] == 300.0
    assert drawn[1900] > 2.5 * drawn[1000]


def test_a_token_has_the_version_that_the_engine_served_when_its_own_clock_reached_it() -> None:
    """A token every 0.1 s from 1.0 on; version 1 came at 1.25 and version 2 at 1.45 of the engine's clock."""
    engine = PacedEngine(LogNormal(1, 0, 1), token_s=0.1, slots=1, prefill_s=0.0, load_s=0.0, answer=[1, 2])
    engine._changes += [(1.25, 1), (1.45, 2)]
    assert engine._versions(1.0, 6) == [0, 0, 0, 1, 1, 2]


@pytest.mark.slow
def test_a_tiny_run_of_each_kind_ends_with_its_figures() -> None:
    quick = Workload(
        turns=LogNormal(2.0, 0.1, 3.0), tokens=LogNormal(8.0, 0.1, 10.0), tool_s=LogNormal(0.01, 0.1, 0.02)
    )
    for max_lag in (None, 0, 2):
        plan = Plan(
            max_lag=max_lag, steps=3, warm_steps=1, groups_per_step=2, group_size=2, concurrency=8, outstanding=4,
            train_s=0.05, workload=quick,
        )  # fmt: skip
        found = scripted.run(plan).played
        assert found.groups == 4
        assert found.turns > 0
        assert found.steps == (0 if max_lag is None else 2)
        assert set(map(int, found.staleness)) <= set(range((max_lag or 0) + 1))
