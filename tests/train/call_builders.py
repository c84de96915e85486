"""Trajectories of many calls, made by the gateway's own token graph."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from agentrl.digest import digest_of
from agentrl.gateway.graph import build_rows, count_dropped
from agentrl.types import Call, FinishReason, Sampling, Trajectory, VersionSpan


def call(
    prompt: Sequence[int],
    sampled: Sequence[int],
    *,
    parent: int | None = None,
    reward: float | None = None,
    version: int = 0,
    untrainable: str | None = None,
    logprobs: Sequence[float] | None = None,
    finish_reason: FinishReason = "stop",
) -> Call:
    return Call(
        call_id=f"c{len(prompt)}",
        prompt_token_ids=list(prompt),
        prompt_digest=digest_of(list(prompt)),
        token_ids=list(sampled),
        logprobs=[-0.001 * token for token in sampled] if logprobs is None else list(logprobs),
        versions=[VersionSpan(version, 0, len(sampled))],
        finish_reason=finish_reason,
        engine_id="engine-0",
        sampling=Sampling(),
        message={"role": "assistant", "content": "x"},
        parent=parent,
        reward=reward,
        untrainable=untrainable,
    )


def trajectory_of(
    calls: Sequence[Call], reward: float | None, *, session_id: str = "s0", stop_reason: str = "done", **metadata: str
) -> Trajectory:
    return Trajectory(
        session_id=session_id,
        stop_reason=stop_reason,
        reward=reward,
        calls=list(calls),
        rows=build_rows(calls),
        dropped=count_dropped(calls),
        metadata=dict(metadata),
    )


def chain(
    rewards: Sequence[float | None],
    reward: float | None,
    *,
    session_id: str = "s0",
    stop_reason: str = "done",
    version: int = 0,
    size: int = 2,
    finish_reason: FinishReason = "stop",
) -> Trajectory:
    """A conversation: one context token, then `size` sampled ones, as often as there are `rewards` of calls."""
    calls: list[Call] = []
    ids: list[int] = []
    for index, of_call in enumerate(rewards):
        prompt = [*ids, 1]
        sampled = [10 + index] * size
        last = index == len(rewards) - 1
        calls.append(
            call(
                prompt, sampled, parent=index - 1 if index else None, reward=of_call, version=version,
                finish_reason=finish_reason if last else "stop",
            )
        )  # fmt: skip
        ids = prompt + sampled
    return trajectory_of(calls, reward, session_id=session_id, stop_reason=stop_reason)


@st.composite
def trees(draw: st.DrawFn, versions: st.SearchStrategy[int] | None = None) -> Trajectory:
    """Random trees of calls; every sampled token has an id of its own, so a token says which call sampled it."""
    calls: list[Call] = []
    fresh = itertools.count(100)
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.none() | st.integers(0, index - 1)) if index else None
        before = [] if parent is None else calls[parent].prompt_token_ids + calls[parent].token_ids
        prompt = [*before, *([1] * draw(st.integers(1, 2)))]
        sampled = [next(fresh) for _ in range(draw(st.integers(1, 3)))]
        calls.append(
            call(
                prompt,
                sampled,
                parent=parent,
                reward=draw(st.none() | st.sampled_from([0.25, -0.5, 1.0])),
                version=draw(versions) if versions is not None else 0,
                untrainable=draw(st.sampled_from([None, None, None, "constrained"])),
            )
        )
    return trajectory_of(calls, draw(st.sampled_from([0.0, 1.0, -2.0])))
