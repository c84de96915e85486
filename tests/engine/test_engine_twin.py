"""The scripted twin keeps vLLM's rules about pauses, swaps and spans; everybody's tests lean on it."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterator

import aiohttp
import pytest

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import Reply, ScriptedEngine, scripted_logprob
from agentrl.errors import EngineUnavailable, SwapError
from agentrl.types import Sampling, TokenChunk, VersionSpan

SIX = [1, 2, 3, 4, 5, 6]


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(lambda *_: SIX) as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(engine.url)
    yield client
    await client.close()


@pytest.fixture
async def control(engine: ScriptedEngine) -> AsyncIterator[EngineControl]:
    control = EngineControl(engine.url)
    yield control
    await control.close()


def generate(client: HttpEngineClient) -> asyncio.Task[list[TokenChunk]]:
    async def collect() -> list[TokenChunk]:
        return [chunk async for chunk in client.stream([9], Sampling(), request_id="call")]

    return asyncio.create_task(collect())


async def test_a_swap_in_flight_splits_the_spans_where_the_tokens_changed_hands(
    engine: ScriptedEngine, client: HttpEngineClient, control: EngineControl
) -> None:
    engine.hold()
    engine.allow(2)
    generation = generate(client)
    await engine.until(lambda: len(engine.requests) == 1 and len(engine.requests[0].token_ids) == 2)
    await control.pause(mode="keep", clear_cache=False)
    engine.release()  # paused: nothing comes
    await control.start_weight_update()
    await control.finish_weight_update(4)
    assert engine.requests[0].token_ids == SIX[:2]
    await control.resume()
    chunks = await generation
    assert chunks[-1].versions == [VersionSpan(0, 0, 2), VersionSpan(4, 2, 6)]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs or ()]
    assert logprobs == [scripted_logprob(i, 0) for i in SIX[:2]] + [scripted_logprob(i, 4) for i in SIX[2:]]


async def test_pausing_with_wait_returns_after_the_last_token_and_queues_what_comes_then(
    engine: ScriptedEngine, client: HttpEngineClient, control: EngineControl
) -> None:
    engine.hold()
    first = generate(client)
    await engine.until(lambda: engine.running == 1)
    pausing = asyncio.create_task(control.pause(mode="wait", clear_cache=True))
    await engine.until(lambda: engine.paused == "wait")
    second = generate(client)
    await engine.until(lambda: len(engine.requests) == 2)
    assert not pausing.done()
    engine.release()
    await pausing
    assert (await first)[-1].finish_reason == "stop"
    assert engine.requests[1].token_ids == []
    await control.resume()
    assert (await second)[-1].finish_reason == "stop"


async def test_pausing_with_abort_ends_what_runs(
    engine: ScriptedEngine, client: HttpEngineClient, control: EngineControl
) -> None:
    engine.hold()
    engine.allow(2)
    generation = generate(client)
    await engine.until(lambda: bool(engine.requests) and len(engine.requests[0].token_ids) == 2)
    await control.pause(mode="abort", clear_cache=True)
    chunks = await generation
    assert [token for chunk in chunks for token in chunk.token_ids] == SIX[:2]
    assert chunks[-1].finish_reason == "abort"


async def test_updates_keep_their_order(control: EngineControl) -> None:
    with pytest.raises(SwapError, match="without a matching start"):
        await control.finish_weight_update(1)
    await control.start_weight_update()
    await control.start_weight_update()  # ends the open one first, as after a trainer's death
    await control.finish_weight_update(1)
    assert await control.version() == 1


async def test_the_prefix_cache_is_not_reset_under_running_requests(
    engine: ScriptedEngine, client: HttpEngineClient, control: EngineControl
) -> None:
    engine.hold()
    generation = generate(client)
    await engine.until(lambda: engine.running == 1)
    with pytest.raises(SwapError, match="requests in flight hold it"):
        await control.reset_prefix_cache()
    engine.release()
    await generation
    await control.reset_prefix_cache()
    assert engine.cache_resets == 1


async def test_a_crash_breaks_what_runs_and_a_restart_serves_the_first_weights(
    engine: ScriptedEngine, client: HttpEngineClient, control: EngineControl
) -> None:
    await control.start_weight_update()
    await control.finish_weight_update(5)
    engine.hold()
    generation = generate(client)
    await engine.until(lambda: engine.running == 1)
    url = engine.url
    await engine.crash()
    with pytest.raises(EngineUnavailable):
        await generation
    await engine.restart()
    assert engine.url == url
    assert await client.version() == 0
    assert (await generate(client))[-1].versions == [VersionSpan(0, 0, 6)]


async def test_not_streaming_gives_the_same_generation(engine: ScriptedEngine) -> None:
    engine.script = lambda *_: Reply(token_ids=[7, 8], logprobs=[-0.5, -1.5], stop_reason=8)
    body = {"token_ids": [1], "sampling_params": {"max_tokens": 5}}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{engine.url}/inference/v1/generate", json=body) as response,
    ):
        choice = (await response.json())["choices"][0]
    assert choice["token_ids"] == [7, 8]
    assert [entry["logprob"] for entry in choice["logprobs"]["content"]] == [-0.5, -1.5]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", 8)
    assert choice["weight_versions"] == [{"version": "0", "start": 0, "end": 2}]


def test_it_serves_from_a_thread_where_there_is_no_event_loop() -> None:
    with ScriptedEngine(lambda *_: SIX) as engine, urllib.request.urlopen(f"{engine.url}/weight_info") as answer:
        assert answer.read() == b'{"weight_version": "default"}'
