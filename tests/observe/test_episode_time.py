"""An episode's time is split into its parts exactly, however its calls, swaps and failures lie."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from agentrl.observe.episode_time import PARTS, Pauses, Slice, call_slices, episode_slices, totals
from agentrl.types import Call, Sampling, Segment, SwapMode, SwapRecord

S = 1_000_000_000
"""A second."""


def call(started: float, ended: float, moments: list[float], *, segments: list[Segment] | None = None) -> Call:
    """`moments` in seconds after the start."""
    return Call(
        call_id="c",
        prompt_token_ids=[1],
        prompt_digest="",
        token_ids=[2],
        logprobs=None,
        versions=[],
        finish_reason="stop",
        engine_id="engine-0",
        sampling=Sampling(),
        message={},
        segments=segments or [],
        started_at=started,
        ended_at=ended,
        moments=[round(moment * 1e6) for moment in moments],
    )


def swap(started: float, ended: float, mode: SwapMode = "keep", engine: str = "engine-0") -> SwapRecord:
    return SwapRecord(engine_id=engine, version=1, mode=mode, started_at=started, finished_at=ended)


def seconds(slices: list[Slice]) -> dict[str, float]:
    return {part: spent / S for part, spent in totals(slices).items() if spent}


def test_an_episode_waits_for_a_place_then_is_with_the_environment_or_the_policy_then_with_the_reward():
    """Admitted at 0, begun at 2; a call from 3 to 9: an engine after 1 s, its first token 2 s later; ended at 10;
    scored from 12 to 15."""
    slices = episode_slices(
        [call(3, 9, [1, 3])], Pauses(), admitted=0, begun=2 * S, ended=10 * S, scoring=(12 * S, 15 * S)
    )
    assert seconds(slices) == {"queue": 3.0, "prefill": 2.0, "decode": 3.0, "tool": 2.0, "reward": 3.0}
    assert [each.part for each in slices] == ["queue", "tool", "queue", "prefill", "decode", "tool", "reward"]


def test_a_call_is_paused_while_its_engine_takes_new_weights():
    """A swap from 5 to 7, in the middle of decoding; another engine's swap is nobody's here."""
    pauses = Pauses([swap(5, 7), swap(4, 8, engine="engine-1")])
    assert seconds(call_slices(call(0, 10, [1, 2]), pauses)) == {
        "queue": 1.0,
        "prefill": 1.0,
        "decode": 6.0,
        "paused": 2.0,
    }


def test_an_engine_that_drains_holds_up_only_who_comes_after():
    """From 5 to 7: a call that it had before goes on, one that it got at 6 waits for a second."""
    pauses = Pauses([swap(5, 7, "drain")])
    assert seconds(call_slices(call(0, 7, [1, 2]), pauses)) == {"queue": 1.0, "prefill": 1.0, "decode": 5.0}
    assert seconds(call_slices(call(6, 9, [0, 1.5]), pauses)) == {"paused": 1.0, "prefill": 0.5, "decode": 1.5}


def test_a_call_that_lost_its_engine_waits_and_prefills_again_and_is_paused_with_the_one_it_has():
    """engine-1 until 4, a wait until 5, then engine-0 from 5 on, whose first token comes at 6 and whose swap is 7–8."""
    parts = [Segment("engine-1", 0, 1), Segment("engine-0", 1, 2)]
    pauses = Pauses([swap(2, 3, engine="engine-1"), swap(7, 8)])
    slices = call_slices(call(0, 9, [0, 1, 4, 5, 6], segments=parts), pauses)
    assert slices == [
        Slice("prefill", 0, 1 * S),
        Slice("decode", 1 * S, 2 * S),
        Slice("paused", 2 * S, 3 * S),
        Slice("decode", 3 * S, 4 * S),
        Slice("queue", 4 * S, 5 * S),
        Slice("prefill", 5 * S, 6 * S),
        Slice("decode", 6 * S, 7 * S),
        Slice("paused", 7 * S, 8 * S),
        Slice("decode", 8 * S, 9 * S),
    ]


def test_of_calls_side_by_side_the_furthest_says_where_the_episode_is():
    """One decodes from 2 to 6 while another waits from 1 to 8."""
    slices = episode_slices(
        [call(2, 6, [0, 0]), call(1, 8, [7, 7])], Pauses(), admitted=None, begun=0, ended=10 * S, scoring=None
    )
    assert [(each.part, each.start // S, each.end // S) for each in slices] == [
        ("tool", 0, 1),
        ("queue", 1, 2),
        ("decode", 2, 6),
        ("queue", 6, 8),
        ("tool", 8, 10),
    ]


def test_a_call_that_nobody_timed_counts_as_decoding():
    assert seconds(call_slices(call(0, 4, []), Pauses([swap(1, 2)]))) == {"decode": 3.0, "paused": 1.0}


def test_the_start_of_an_engine_is_no_pause():
    boot = SwapRecord(engine_id="engine-0", version=0, mode="boot", started_at=0, finished_at=9)
    assert seconds(call_slices(call(1, 3, [0, 0]), Pauses([boot]))) == {"decode": 2.0}


times = st.floats(0, 100) | st.integers(0, 8).map(float)
any_call = st.builds(
    call,
    times,
    times,
    st.lists(st.floats(-5, 30) | st.integers(0, 4).map(float), max_size=8),
    segments=st.lists(
        st.builds(Segment, st.sampled_from(["engine-0", "engine-1"]), st.just(0), st.just(1)), max_size=3
    ),
)
any_swap = st.builds(
    swap, times, times, st.sampled_from(["keep", "recompute", "drain"]), st.sampled_from(["engine-0", "engine-1"])
)
nanos = st.integers(-5 * S, 100 * S)


@given(st.lists(any_call, max_size=6), st.lists(any_swap, max_size=6))
def test_a_calls_slices_are_its_time_without_a_gap(calls: list[Call], swaps: list[SwapRecord]):
    for each in calls:
        slices = call_slices(each, Pauses(swaps))
        start, end = round(each.started_at * 1e9), round(each.ended_at * 1e9)
        assert sum(s.end - s.start for s in slices) == max(0, end - start)
        assert all(s.start < s.end for s in slices)
        assert all(before.end == after.start for before, after in pairwise(slices))


@given(
    st.lists(any_call, max_size=6),
    st.lists(any_swap, max_size=6),
    st.none() | nanos,
    nanos,
    nanos,
    st.none() | st.tuples(nanos, nanos),
)
def test_the_parts_add_up_exactly_to_the_episodes_time(
    calls: list[Call],
    swaps: list[SwapRecord],
    admitted: int | None,
    begun: int,
    ended: int,
    scoring: tuple[int, int] | None,
):
    slices = episode_slices(calls, Pauses(swaps), admitted=admitted, begun=begun, ended=ended, scoring=scoring)
    start, end = min(begun, begun if admitted is None else admitted), max(begun, ended)
    reward = 0 if scoring is None else max(0, scoring[1] - max(end, scoring[0]))
    spent = totals(slices)
    assert set(spent) == set(PARTS)
    assert all(value >= 0 for value in spent.values())
    assert sum(spent.values()) == end - start + reward
    assert spent["reward"] == reward
    played = [each for each in slices if each.part != "reward"]
    assert all(before.end == after.start for before, after in pairwise(played))
    assert all(before.part != after.part for before, after in pairwise(played))
