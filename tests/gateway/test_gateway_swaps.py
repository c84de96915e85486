"""Weights that change three times while a call is under way: how the engine pauses decides what the sample is of."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gateway_builders import END, Opened, Served, always, letters, serving, user

from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import ScriptedEngine, scripted_logprob
from agentrl.engine.swap import WeightSwap
from agentrl.types import SwapMode, WeightGroup

TURN = [*letters("abcdefg"), END]


async def swap(engine: ScriptedEngine, version: int, mode: SwapMode) -> None:
    group = WeightGroup(
        version=version, index=0, count=1, path="/dev/shm/w", digest="0" * 32, names=("w",), num_bytes=8
    )
    control = EngineControl(engine.url)
    async with WeightSwap([control], version, mode) as swapping:
        await swapping.load(group)
    await control.close()


async def after_two_tokens(served: Served) -> tuple[Opened, asyncio.Task[dict[str, Any]]]:
    """A call that has sampled as many, and samples no more until it is let."""
    session = await served.open()
    served.engine.hold()
    call = asyncio.create_task(session.chat([user("q")]))
    await served.engine.until(lambda: served.engine.running == 1)
    await sampled(served.engine, 2)
    return session, call


async def sampled(engine: ScriptedEngine, more: int) -> None:
    target = len(engine.requests[0].token_ids) + more
    engine.allow(more)
    await engine.until(lambda: len(engine.requests[0].token_ids) == target)


async def spans_of(served: Served, session: Opened) -> list[tuple[int, int, int]]:
    """Of the sampled tokens of the only row: version, begin, end."""
    [row] = (await served.trajectory(session))["rows"]
    begun = row["loss_mask"].index(1)
    versions = [version for span in row["versions"] for version in [span["version"]] * (span["end"] - span["start"])]
    assert row["logprobs"][begun:] == [scripted_logprob(i, v) for i, v in zip(TURN, versions, strict=True)]
    return [(span["version"], span["start"] - begun, span["end"] - begun) for span in row["versions"]]


async def test_a_swap_that_drains_waits_for_the_call_and_its_sample_is_of_one_version() -> None:
    """Case 59, without partial rollouts: all three wait for its end."""
    async with serving(always(TURN)) as served:
        session, call = await after_two_tokens(served)

        async def three() -> None:
            for version in (1, 2, 3):
                await swap(served.engine, version, "drain")

        swaps = asyncio.create_task(three())
        await served.engine.until(lambda: served.engine.paused == "wait")
        await sampled(served.engine, 2)
        assert served.engine.version == 0
        served.engine.release()
        await call
        await swaps
        assert served.engine.version == 3
        assert await spans_of(served, session) == [(0, 0, 8)]


@pytest.mark.parametrize("mode", ["recompute", "keep"])
async def test_the_others_go_through_the_call_and_each_token_is_of_the_version_that_sampled_it(mode: SwapMode) -> None:
    """Case 59, with partial rollouts: two tokens a version."""
    async with serving(always(TURN)) as served:
        session, call = await after_two_tokens(served)
        for version in (1, 2, 3):
            await swap(served.engine, version, mode)
            await sampled(served.engine, 2)
        served.engine.release()
        await call
        assert await spans_of(served, session) == [(0, 0, 2), (1, 2, 4), (2, 4, 6), (3, 6, 8)]
