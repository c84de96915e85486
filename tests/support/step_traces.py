"""Builds what a loop says of its steps, with times that are easy to add up."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.observe.step_trace import EpisodeTrace, GroupTrace, StepTrace
from agentrl.observe.timing import Phase
from agentrl.types import Call, Sampling, SwapRecord, Task, Trajectory, VersionSpan

S = 1_000_000_000
"""A second."""


def a_call(call_id: str, started: float, ended: float, moments: Sequence[float] = (), engine: str = "engine-0") -> Call:
    """Seconds; the moments are counted from the start. Two prompt tokens, three sampled ones of version 4."""
    return Call(
        call_id=call_id,
        prompt_token_ids=[1, 2],
        prompt_digest="",
        token_ids=[3, 4, 5],
        logprobs=[-1.0, -1.0, -1.0],
        versions=[VersionSpan(4, 0, 3)],
        finish_reason="stop",
        engine_id=engine,
        sampling=Sampling(),
        message={"role": "assistant", "content": "x"},
        started_at=started,
        ended_at=ended,
        moments=[round(moment * 1e6) for moment in moments],
    )


def an_episode(
    session_id: str,
    begun: float,
    ended: float,
    calls: Sequence[Call] = (),
    *,
    outcome: str = "trained",
    reward: float | None = 1.0,
) -> EpisodeTrace:
    trajectory = Trajectory(
        session_id=session_id,
        stop_reason="done",
        reward=reward,
        calls=list(calls),
        metadata={"index": 0},
        created_at=begun,
        finished_at=ended,
    )
    return EpisodeTrace(trajectory=trajectory, outcome=outcome, trained_tokens=3, max_lag=1)


def a_group(group_id: str, episodes: Sequence[EpisodeTrace], **times: float) -> GroupTrace:
    """Admitted at 0, played at 10, scored at 12 unless told otherwise; trained as its first episode was."""
    return GroupTrace(
        group_id=group_id,
        task=Task(id="t0", env_id="calculator"),
        outcome=episodes[0].outcome,
        episodes=episodes,
        **{"admitted_at": 0.0, "played_at": 10.0, "scored_at": 12.0, **times},  # type: ignore[arg-type]
    )


def a_step(number: int, groups: Sequence[GroupTrace], *, at: float = 20.0) -> StepTrace:
    """Waits 2 s from `at` on, trains 3 s, publishes 1 s."""
    phases = [Phase("wait", at, at + 2), Phase("train", at + 2, at + 5), Phase("publish", at + 5, at + 6)]
    return StepTrace(step=number, phases=phases, groups=groups, numbers={"trained_tokens": 3.0})


def whole_step(number: int = 5) -> StepTrace:
    """One group of one episode with one call: a place after 1 s, an engine after 1 more, its first token at 4, the last
    at 8; a swap of that engine from 5 to 6 (`whole_swaps`); the end at 10 and the reward from there to 12."""
    return a_step(number, [a_group("g0", [an_episode("s0", 1, 10, [a_call("c0", 1, 8, [1, 3])])])])


def whole_swaps(skip: int = 0) -> list[SwapRecord]:
    swaps = [
        SwapRecord(engine_id="engine-0", version=0, mode="boot", started_at=-9, finished_at=0),
        SwapRecord(engine_id="engine-0", version=4, mode="keep", started_at=5, finished_at=6),
    ]
    return swaps[skip:]
