"""The engine room on a real vLLM server, against transformers as the oracle."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import torch
from msgspec import structs
from vllm_session import Sample, Tensors, VllmEngine

from agentrl.engine import wire
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.wire import checked_logprobs, sampling_params
from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable, SwapError
from agentrl.types import Sampling, SwapMode, VersionSpan, WeightGroup

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

MODES: list[SwapMode] = ["keep", "recompute", "drain"]
LONG_PROMPT = [20 + i * 7 % 300 for i in range(300)]  # more than two KV blocks of 128, so that it can be cached
TOLERANCE = 1e-4


@pytest.fixture
async def client(vllm_engine: VllmEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(vllm_engine.url)
    yield client
    await client.close()


@pytest.fixture
async def restored(vllm_engine: VllmEngine) -> AsyncIterator[None]:
    """Puts the first weights back after a test that swapped others in."""
    yield
    await vllm_engine.swap(vllm_engine.initial(), "recompute")


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generations run to max_tokens: the end-of-turn token does not end them."""

    def with_ignored_eos(*args: Any, **kwargs: Any) -> dict[str, Any]:
        return sampling_params(*args, **kwargs) | {"ignore_eos": True}

    monkeypatch.setattr(wire, "sampling_params", with_ignored_eos)


def changed(tensors: Tensors, seed: int) -> Tensors:
    """A policy that is clearly another one and still a sensible distribution."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor * (1 + 0.2 * torch.randn(tensor.shape, generator=generator)) for name, tensor in tensors.items()
    }


def worst_error(ours: list[float], expected: list[float]) -> float:
    assert len(ours) == len(expected) > 0
    return max(abs(a - b) for a, b in zip(ours, expected, strict=True))


class InFlight:
    """Long generations at once on an engine that runs only in short windows, so that a test can act between tokens."""

    def __init__(self, client: HttpEngineClient, control: EngineControl, requests: int, max_tokens: int) -> None:
        self.samples = [Sample([30 + number, *LONG_PROMPT[:40]]) for number in range(requests)]
        self._client, self._control, self._sampling = client, control, Sampling(max_tokens=max_tokens)
        self._progress = asyncio.Condition()
        self.tasks = [asyncio.create_task(self._run(sample)) for sample in self.samples]

    async def _run(self, sample: Sample) -> None:
        async for chunk in self._client.stream(sample.prompt_ids, self._sampling, request_id="long"):
            assert chunk.logprobs is not None
            async with self._progress:
                sample.token_ids += chunk.token_ids
                sample.logprobs += chunk.logprobs
                sample.finish_reason = chunk.finish_reason
                sample.versions = chunk.versions or []
                self._progress.notify_all()

    async def further(self) -> None:
        """Until every generation has more tokens than now and none has ended. The engine is paused then."""
        before = [len(sample.token_ids) for sample in self.samples]
        for _ in range(60):
            await self._control.resume()
            await self._control.pause(mode="keep", clear_cache=False)
            if await self._all_beyond(before):
                assert all(sample.finish_reason is None for sample in self.samples), "max_tokens is too small"
                return
        raise AssertionError(f"some of the generations stand still at {[len(s.token_ids) for s in self.samples]}")

    async def _all_beyond(self, before: list[int]) -> bool:
        try:
            async with asyncio.timeout(0.25), self._progress:
                await self._progress.wait_for(
                    lambda: all(len(s.token_ids) > n for s, n in zip(self.samples, before, strict=True))
                )
        except TimeoutError:
            return False
        return True

    async def finished(self) -> list[Sample]:
        async with asyncio.timeout(120):
            await asyncio.gather(*self.tasks)
        return self.samples


@pytest.fixture
async def in_flight(
    vllm_engine: VllmEngine, client: HttpEngineClient, endless: None
) -> AsyncIterator[Callable[[int, int], InFlight]]:
    """(requests, max_tokens) -> them, sent to a paused engine. It runs again at the end, whatever happened."""
    control = EngineControl(vllm_engine.url)
    await control.pause(mode="keep", clear_cache=False)
    flights: list[InFlight] = []

    def start(requests: int, max_tokens: int) -> InFlight:
        flights.append(InFlight(client, control, requests, max_tokens))
        return flights[-1]

    yield start
    for task in (task for flight in flights for task in flight.tasks):
        task.cancel()
    await control.resume()
    await control.close()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(
    vllm_engine: VllmEngine, client: HttpEngineClient, temperature: float, endless: None
) -> None:
    """Cases 14 and 15: after temperature, and untouched by the model's generation_config.json."""
    sample = await vllm_engine.sample(client, LONG_PROMPT[:30], Sampling(temperature=temperature, max_tokens=64))
    expected = vllm_engine.expected_logprobs(vllm_engine.initial(), sample, temperature)
    assert worst_error(sample.logprobs, expected) < TOLERANCE


async def test_a_request_without_sampling_fields_gets_neutral_ones(vllm_engine: VllmEngine) -> None:
    """Case 15: a client that is not ours leaves them out, and generation_config.json still does not fill them in."""
    sample = Sample(LONG_PROMPT[:30])
    body = {"token_ids": sample.prompt_ids, "sampling_params": {"max_tokens": 64, "logprobs": 0, "ignore_eos": True}}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{vllm_engine.url}/inference/v1/generate", json=body) as response,
    ):
        choice = (await response.json())["choices"][0]
    sample.token_ids = choice["token_ids"]
    logprobs = checked_logprobs(sample.token_ids, choice["logprobs"])
    assert logprobs is not None
    expected = vllm_engine.expected_logprobs(vllm_engine.initial(), sample, 1.0)
    assert worst_error(logprobs, expected) < TOLERANCE


async def test_streaming_and_not_streaming_sample_the_same(
    vllm_engine: VllmEngine, client: HttpEngineClient, endless: None
) -> None:
    greedy = Sampling(temperature=0.0, max_tokens=50)
    streamed = await vllm_engine.sample(client, LONG_PROMPT[:30], greedy)
    params = sampling_params(greedy, max_tokens=50, send_seed=False) | {"ignore_eos": True}
    body = {"token_ids": LONG_PROMPT[:30], "sampling_params": params}
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{vllm_engine.url}/inference/v1/generate", json=body) as response,
    ):
        choice = (await response.json())["choices"][0]
    assert streamed.token_ids == choice["token_ids"]
    assert len(streamed.token_ids) == 50
    assert streamed.finish_reason == choice["finish_reason"] == "length"
    assert streamed.chunks == 8  # the first token alone, then 8 at a time


async def test_a_bad_prompt_is_refused_for_good_and_an_overlong_one_by_its_type(client: HttpEngineClient) -> None:
    assert await client.context_length() == 1024
    with pytest.raises(ContextOverflow):
        await anext(aiter(client.stream([1] * 1024, Sampling(), request_id="long")))
    with pytest.raises(EngineError, match="out of vocabulary") as refused:
        await anext(aiter(client.stream([99_999], Sampling(), request_id="bad")))
    assert not isinstance(refused.value, EngineUnavailable)


async def test_closing_the_iterator_ends_the_request_in_the_engine(
    vllm_engine: VllmEngine, client: HttpEngineClient, endless: None
) -> None:
    before = await metric(vllm_engine, "vllm:generation_tokens_total")
    stream = client.stream(LONG_PROMPT[:30], Sampling(max_tokens=900), request_id="abandoned")
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(10):
        while await metric(vllm_engine, "vllm:num_requests_running"):  # noqa: ASYNC110 (another process; no event)
            await asyncio.sleep(0.1)
    assert await metric(vllm_engine, "vllm:generation_tokens_total") - before < 900


async def metric(engine: VllmEngine, name: str) -> float:
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name + "{"))


@pytest.mark.parametrize("mode", MODES)
async def test_after_a_swap_the_engine_computes_with_the_trainers_weights(
    vllm_engine: VllmEngine, client: HttpEngineClient, mode: SwapMode, restored: None, endless: None
) -> None:
    """Cases 52 and 56: a tied head and a prefix that was cached under the old weights hide nothing."""
    sampling = Sampling(max_tokens=32)
    for _ in range(2):  # the second one fills from the prefix cache
        await vllm_engine.sample(client, LONG_PROMPT, sampling)
    weights = changed(vllm_engine.initial(), seed=MODES.index(mode))
    swap = await vllm_engine.swap(weights, mode)
    assert await client.version() == vllm_engine.version
    sample = await vllm_engine.sample(client, LONG_PROMPT, sampling)
    assert sample.versions == [VersionSpan(vllm_engine.version, 0, 32)]
    assert worst_error(sample.logprobs, vllm_engine.expected_logprobs(weights, sample, 1.0)) < TOLERANCE
    assert worst_error(sample.logprobs, vllm_engine.expected_logprobs(vllm_engine.initial(), sample, 1.0)) > 0.1
    assert [(record.version, record.mode) for record in swap.records] == [(vllm_engine.version, mode)]


async def test_recompute_gives_requests_in_flight_the_new_weights_whole(
    vllm_engine: VllmEngine, in_flight: Callable[[int, int], InFlight], restored: None
) -> None:
    """Before the boundary the old weights' logprobs, after it the new ones', as if the prefix had been theirs."""
    old, new = vllm_engine.initial(), changed(vllm_engine.initial(), seed=7)
    first = vllm_engine.version
    flight = in_flight(4, 400)
    await flight.further()
    await vllm_engine.swap(new, "recompute")
    for sample in await flight.finished():
        cut = sample.versions[0].end
        assert sample.versions == [VersionSpan(first, 0, cut), VersionSpan(first + 1, cut, 400)]
        assert worst_error(sample.logprobs[:cut], vllm_engine.expected_logprobs(old, sample, 1.0)[:cut]) < TOLERANCE
        assert worst_error(sample.logprobs[cut:], vllm_engine.expected_logprobs(new, sample, 1.0)[cut:]) < TOLERANCE


async def test_drain_lets_requests_in_flight_finish_under_their_weights(
    vllm_engine: VllmEngine, in_flight: Callable[[int, int], InFlight], restored: None
) -> None:
    """Case 59, without partial rollouts."""
    old, first = vllm_engine.initial(), vllm_engine.version
    flight = in_flight(4, 400)
    await flight.further()
    await vllm_engine.swap(changed(old, seed=8), "drain")
    for sample in await flight.finished():
        assert sample.versions == [VersionSpan(first, 0, 400)]
        assert worst_error(sample.logprobs, vllm_engine.expected_logprobs(old, sample, 1.0)) < TOLERANCE


async def test_sixteen_requests_live_through_three_swaps_without_a_gap_or_a_repeat(
    vllm_engine: VllmEngine, in_flight: Callable[[int, int], InFlight]
) -> None:
    """Case 60. The weights stay the same, so a token lost or doubled at a join would spoil all logprobs after it."""
    weights, first = vllm_engine.initial(), vllm_engine.version
    flight = in_flight(16, 400)
    for _ in range(3):
        await flight.further()
        await vllm_engine.swap(weights, "keep")
    samples = await flight.finished()
    assert [sample.finish_reason for sample in samples] == ["length"] * 16
    assert [len(sample.token_ids) for sample in samples] == [400] * 16
    for sample in samples:
        assert [span.version for span in sample.versions] == [first, first + 1, first + 2, first + 3]
        assert worst_error(sample.logprobs, vllm_engine.expected_logprobs(weights, sample, 1.0)) < TOLERANCE


def unknown_name(tensors: Tensors) -> Tensors:
    return tensors | {"model.layers.0.extra.weight": torch.zeros(3)}


def missing_name(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != "model.norm.weight"}


def wrong_shape(tensors: Tensors) -> Tensors:
    return tensors | {"model.norm.weight": torch.zeros(3)}


def wrong_format(tensors: Tensors) -> Tensors:
    return tensors | {"model.norm.weight": tensors["model.norm.weight"].double()}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (unknown_name, r"no tensor .{1,3}model\.layers\.0\.extra\.weight"),
        (missing_name, r"incomplete: no model\.norm\.weight"),
        (wrong_shape, r"model\.norm\.weight.{1,3} has shape \[3\]"),
        (wrong_format, r"model\.norm\.weight.{1,3} is F64"),
    ],
)
async def test_a_wrong_set_of_tensors_fails_the_swap_and_a_right_one_heals_it(
    vllm_engine: VllmEngine,
    client: HttpEngineClient,
    spoil: Callable[[Tensors], Tensors],
    message: str,
    endless: None,
) -> None:
    """Case 52: the version is not raised, the engine stays paused, and the next whole swap puts everything right."""
    weights, version = vllm_engine.initial(), vllm_engine.version
    with pytest.raises(SwapError, match=message):
        await vllm_engine.swap(spoil(changed(weights, seed=9)), "recompute")
    assert await client.version() == version
    assert await is_paused(vllm_engine)
    await vllm_engine.swap(weights, "recompute")
    sample = await vllm_engine.sample(client, LONG_PROMPT[:30], Sampling(max_tokens=32))
    assert sample.versions == [VersionSpan(version + 1, 0, 32)]
    assert worst_error(sample.logprobs, vllm_engine.expected_logprobs(weights, sample, 1.0)) < TOLERANCE


async def is_paused(engine: VllmEngine) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"{engine.url}/is_paused") as response:
        return bool((await response.json())["is_paused"])


def tampered(engine: VllmEngine, elsewhere: Path) -> list[WeightGroup]:
    groups = engine.groups(engine.initial(), engine.version + 1)
    with Path(groups[0].path).open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0\0\0\1")
    return groups


def outside(engine: VllmEngine, elsewhere: Path) -> list[WeightGroup]:
    return VllmEngine(engine.url, engine.model, elsewhere).groups(engine.initial(), engine.version + 1)


def twice(engine: VllmEngine, elsewhere: Path) -> list[WeightGroup]:
    first = engine.groups(engine.initial(), engine.version + 1)[0]
    copy = Path(first.path).with_name("copy.safetensors")
    copy.write_bytes(Path(first.path).read_bytes())
    return [first, structs.replace(first, path=str(copy))]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(tampered, "arrived with digest"), (outside, "weights are taken from"), (twice, "came twice")],
)
async def test_a_group_is_checked_on_arrival(
    vllm_engine: VllmEngine,
    tmp_path: Path,
    spoil: Callable[[VllmEngine, Path], list[WeightGroup]],
    message: str,
    restored: None,
) -> None:
    with pytest.raises(SwapError, match=message):
        await vllm_engine.swap({}, "recompute", spoil(vllm_engine, tmp_path))
