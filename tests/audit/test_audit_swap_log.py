"""Each token was sampled by a version that its engine had at that time, by the swap log."""

from __future__ import annotations

import pytest
from trajectories import TrajectoryBuilder, boot

from agentrl.audit.finding import Subject
from agentrl.audit.swap_log import SwapLog, swap_log_check
from agentrl.types import Segment, SwapRecord, Trajectory


def swap(version: int, begin: float, end: float, engine_id: str = "engine-0") -> SwapRecord:
    return SwapRecord(engine_id=engine_id, version=version, mode="recompute", started_at=begin, finished_at=end)


def doubts(trajectory: Trajectory, *swaps: SwapRecord, slack_s: float = 0.0) -> list[str]:
    check = swap_log_check(SwapLog(swaps), slack_s=slack_s)
    return [finding.detail for finding in check.examine(Subject(trajectory)).findings]


def one_call(*versions: tuple[int, int], engine_id: str = "engine-0") -> Trajectory:
    """A call that ran in [100, 100.5]."""
    size = sum(count for _, count in versions)
    return TrajectoryBuilder().call([1, 2], size, versions=versions, engine_id=engine_id).build()


def test_a_swap_in_flight_gives_a_call_two_versions() -> None:
    assert doubts(one_call((0, 3), (1, 2)), boot(), swap(1, 100.2, 100.3)) == []


@pytest.mark.parametrize(
    ("begin", "end"), [(100.5, 100.9), (99.0, 100.0)], ids=["begins as it ends", "ends as it begins"]
)
def test_within_a_swap_either_version_may_sample(begin: float, end: float) -> None:
    assert doubts(one_call((0, 3)), boot(), swap(1, begin, end)) == []
    assert doubts(one_call((1, 3)), boot(), swap(1, begin, end)) == []


def test_an_engine_that_never_had_the_version_is_named() -> None:
    log = [boot("engine-0"), boot("engine-1"), swap(1, 50, 51), swap(2, 60, 61), swap(2, 60, 61, "engine-1")]
    assert doubts(one_call((1, 3), engine_id="engine-1"), *log) == [
        "call s0-0, tokens [0, 3): engine engine-1 never had version 1, only 0, 2"
    ]


def test_an_unknown_engine_is_named() -> None:
    assert doubts(one_call((0, 3), engine_id="engine-9"), boot()) == [
        "call s0-0, tokens [0, 3): engine engine-9 is not in the swap log"
    ]


def test_a_version_from_the_future_is_named() -> None:
    assert doubts(one_call((0, 1), (1, 2)), boot(), swap(1, 102.0, 102.5)) == [
        "call s0-0, tokens [1, 3): version 1 was live on engine engine-0 in [+2.000, +inf], "
        "the call ran in [+0.000, +0.500] (seconds since it began)"
    ]


def test_a_version_that_was_replaced_before_is_named() -> None:
    (doubt,) = doubts(one_call((0, 3)), boot(), swap(1, 90.0, 91.0))
    assert "version 0 was live on engine engine-0 in [-100.000, -9.000]" in doubt


def test_a_restarted_engine_has_its_version_again() -> None:
    """Boot 0, swap to 1, death, boot at 1: both windows of version 1 count."""
    log = [boot(), swap(1, 90.0, 91.0), boot(version=1, at=99.0)]
    assert doubts(one_call((1, 3)), *log) == []


def test_clocks_of_hosts_may_be_apart_by_the_slack() -> None:
    late = swap(1, 100.6, 100.7)
    assert doubts(one_call((1, 3)), boot(), late, slack_s=0.2) == []
    assert len(doubts(one_call((1, 3)), boot(), late, slack_s=0.05)) == 1


def moved(*versions: tuple[int, int], segments: list[tuple[str, int, int]]) -> Trajectory:
    """One call of 6 tokens, in [100, 100.5], that engine-0 began and others ended."""
    trajectory = one_call(*versions, engine_id=segments[-1][0])
    trajectory.calls[0].segments = [Segment(*segment) for segment in segments]
    return trajectory


def test_each_part_of_a_call_is_held_to_the_engine_that_sampled_it() -> None:
    """Engine 0 died after 4 tokens; engine 1, which had version 1, went on."""
    trajectory = moved((0, 4), (1, 2), segments=[("engine-0", 0, 4), ("engine-1", 4, 6)])
    assert doubts(trajectory, boot("engine-0"), boot("engine-1", version=1)) == []
    assert doubts(trajectory, boot("engine-0", version=1), boot("engine-1")) == [
        "call s0-0, tokens [0, 4): engine engine-0 never had version 0, only 1",
        "call s0-0, tokens [4, 6): engine engine-1 never had version 1, only 0",
    ]


def test_a_version_that_two_engines_sampled_is_cut_at_their_border() -> None:
    trajectory = moved((3, 6), segments=[("engine-0", 0, 2), ("engine-1", 2, 6)])
    assert doubts(trajectory, boot("engine-0", version=3), boot("engine-1", version=2)) == [
        "call s0-0, tokens [2, 6): engine engine-1 never had version 3, only 2"
    ]


def test_an_engine_that_is_in_no_segment_is_not_asked() -> None:
    """`engine_id` names the last one only."""
    trajectory = moved((0, 6), segments=[("engine-0", 0, 6)])
    trajectory.calls[0].engine_id = "engine-9"
    assert doubts(trajectory, boot("engine-0")) == []


@pytest.mark.parametrize(
    "segments",
    [
        [("engine-0", 0, 2), ("engine-1", 3, 6)],
        [("engine-0", 0, 3), ("engine-1", 2, 6)],
        [("engine-0", 0, 5)],
        [("engine-0", 0, 7)],
        [("engine-0", 0, 4), ("engine-1", 4, 3), ("engine-0", 3, 6)],
    ],
    ids=["a gap", "an overlap", "too short", "too long", "backwards"],
)
def test_segments_that_leave_a_token_without_its_one_engine_are_named(segments: list[tuple[str, int, int]]) -> None:
    (doubt,) = doubts(moved((0, 6), segments=segments), boot("engine-0"), boot("engine-1"))
    parts = ", ".join(f"{engine_id} [{start}, {end})" for engine_id, start, end in segments)
    assert doubt == f"call s0-0: 6 tokens came from {parts}, which do not follow one another from first to last"
