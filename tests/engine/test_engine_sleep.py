"""Engines that give up their memory while the trainer steps, and the swap that wakes them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from test_engine_swap import fleet, group, run_swap

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineConfig, EngineTimeouts
from agentrl.engine.control import EngineControl
from agentrl.engine.launch import server_flags
from agentrl.engine.scripted import HANG, ScriptedEngine
from agentrl.engine.swap import WeightSwap
from agentrl.errors import EngineUnavailable, SwapError
from agentrl.types import Sampling


async def test_a_swap_wakes_the_weights_before_they_come_and_the_cache_after_and_then_resumes() -> None:
    async with fleet(1) as ([engine], [control]):
        await control.sleep(2)
        async with WeightSwap([control], 1, "recompute", asleep=True) as swap:
            for index in range(2):
                await swap.load(group(index, 2))
        assert engine.control_calls == [
            "sleep?level=2&mode=wait",
            "wake_up?tags=weights",
            "pause?mode=keep&clear_cache=true",
            "start_weight_update",
            "update_weights",
            "update_weights",
            "finish_weight_update",
            "weight_info",
            "wake_up?tags=kv_cache",
            "resume",
        ]
        assert (engine.asleep, engine.paused, engine.version) == (set(), None, 1)
        assert [part for part in swap.seconds if "." not in part] == ["pause", "load", "finish", "wake", "resume"]


async def test_a_swap_over_an_engine_that_is_awake_already_is_as_any_other() -> None:
    """One that was restarted while the others slept."""
    async with fleet(2) as (engines, controls):
        await controls[0].sleep(1)
        async with WeightSwap(controls, 1, "recompute", asleep=True) as swap:
            for index in range(2):
                await swap.load(group(index, 2))
        assert [(engine.asleep, engine.paused, engine.version) for engine in engines] == [(set(), None, 1)] * 2
        assert swap.failures == {}


async def test_an_engine_falls_asleep_after_what_is_in_flight_and_what_comes_then_waits_for_the_swap() -> None:
    async with ScriptedEngine(lambda *_: [5, 6, 7]) as engine:
        client, control = HttpEngineClient(engine.url), EngineControl(engine.url)
        engine.hold()

        def ask(number: int) -> asyncio.Task[list[int]]:
            return asyncio.create_task(sampled(client, number))

        first = ask(1)
        await engine.until(lambda: engine.running == 1)
        sleeping = asyncio.create_task(control.sleep(1))
        await engine.until(lambda: engine.paused == "wait")
        assert not engine.asleep
        second = ask(2)
        await engine.until(lambda: len(engine.requests) == 2)
        engine.release()
        await sleeping
        assert await first == [5, 6, 7]
        assert engine.asleep == {"weights", "kv_cache"}
        assert engine.requests[1].token_ids == []
        async with WeightSwap([control], 1, "recompute", asleep=True) as swap:
            await swap.load(group(0, 1))
        assert await second == [5, 6, 7]
        assert engine.requests[1].versions == [1, 1, 1]
        await client.close()
        await control.close()


async def sampled(client: HttpEngineClient, number: int) -> list[int]:
    stream = client.stream([1], Sampling(max_tokens=8), request_id=f"r{number}")
    return [token async for chunk in stream for token in chunk.token_ids]


async def test_what_was_forgotten_may_not_be_left_out_of_the_next_version() -> None:
    async with fleet(1) as ([engine], [control]):
        await run_swap([control])
        await control.sleep(2)
        with pytest.raises(SwapError, match="forgotten while asleep"):
            async with WeightSwap([control], 2, "recompute", asleep=True) as swap:
                await swap.load(msgspec.structs.replace(group(0, 1, version=2), kept=("tensor-1",)))
        assert engine.version == 1


@pytest.mark.parametrize("status", [500, HANG])
async def test_an_engine_that_does_not_wake_missed_the_version_and_the_others_go_on(status: int) -> None:
    timeouts = EngineTimeouts(swap_s=1.0, probe_s=1.0)
    async with fleet(2, timeouts) as (engines, controls):
        for control in controls:
            await control.sleep(1)
        engines[1].refuse_swap["wake_up"] = status
        async with WeightSwap(controls, 1, "recompute", asleep=True) as swap:
            for index in range(2):
                await swap.load(group(index, 2))
        assert list(swap.failures) == ["b"]
        assert (engines[0].version, engines[1].version) == (1, 0)


async def test_an_engine_that_does_not_fall_asleep_in_time_says_so() -> None:
    async with fleet(1, EngineTimeouts(drain_s=0.2)) as ([engine], [control]):
        engine.refuse_swap["sleep"] = HANG
        with pytest.raises(EngineUnavailable, match=r"a/sleep gave no answer in 0.2 s"):
            await control.sleep(1)


def test_only_a_vllm_that_can_sleep_is_started_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(sleep_level=1)
    for on_cpu, asked in ((True, False), (False, True)):
        monkeypatch.setattr("agentrl.engine.launch.cpu_only", lambda on_cpu=on_cpu: on_cpu)
        assert ("--enable-sleep-mode" in server_flags(Path("m"), config, 1)) is asked
    assert "--enable-sleep-mode" not in server_flags(Path("m"), EngineConfig(), 1)
