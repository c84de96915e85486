"""HttpEngineClient against the scripted twin: what it hands on, and what it makes of every fault."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineTimeouts
from agentrl.engine.scripted import Fault, Reply, Request, ScriptedEngine, scripted_logprob
from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable
from agentrl.types import Sampling, TokenChunk, VersionSpan

PROMPT = [11, 12, 13]
TEN = list(range(100, 110))


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(lambda prompt_ids, sampling, version: TEN, max_model_len=64) as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(engine.url, timeouts=EngineTimeouts(stall_s=0.2, first_token_s=5.0, probe_s=5.0))
    yield client
    await client.close()


async def chunks_of(client: HttpEngineClient, sampling: Sampling | None = None) -> list[TokenChunk]:
    return [chunk async for chunk in client.stream(PROMPT, sampling or Sampling(), request_id="call-1")]


async def collect(client: HttpEngineClient, into: list[TokenChunk]) -> None:
    async for chunk in client.stream(PROMPT, Sampling(), request_id="call"):
        into.append(chunk)


def ids(chunks: list[TokenChunk]) -> list[int]:
    return [token_id for chunk in chunks for token_id in chunk.token_ids]


async def test_a_generation_arrives_token_for_token_with_logprobs_and_versions(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    chunks = await chunks_of(client)
    assert ids(chunks) == TEN
    assert [logprob for chunk in chunks for logprob in chunk.logprobs or ()] == [scripted_logprob(i, 0) for i in TEN]
    assert [chunk.finish_reason for chunk in chunks] == [None] * 9 + ["stop"]
    assert chunks[-1].versions == [VersionSpan(0, 0, 10)]
    assert engine.prompts == [PROMPT]
    assert engine.requests[0].request_id == "call-1"


@pytest.mark.parametrize("interval", [1, 3, 8, 100])
async def test_every_stream_interval_gives_the_same_tokens(interval: int) -> None:
    async with ScriptedEngine(lambda *_: TEN, stream_interval=interval) as engine:
        client = HttpEngineClient(engine.url)
        assert ids(await chunks_of(client)) == TEN
        await client.close()


async def test_stop_reason_and_length_are_handed_on(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    engine.script = lambda *_: Reply(token_ids=TEN, stop_reason="</answer>")
    assert (await chunks_of(client))[-1].stop_reason == "</answer>"
    cut = await chunks_of(client, Sampling(max_tokens=4))
    assert ids(cut) == TEN[:4]
    assert cut[-1].finish_reason == "length"


async def test_every_sampling_field_is_sent_and_neutral(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    """Case 15: what is not sent may be filled in from the model's generation_config.json."""
    await chunks_of(client)
    sent = engine.requests[0].sampling_params
    assert sent == {
        "n": 1,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "max_tokens": 61,  # 64 of context less 3 of prompt
        "min_tokens": 0,
        "ignore_eos": False,
        "stop": [],
        "stop_token_ids": [],
        "logprobs": 0,
        "detokenize": False,
    }


async def test_stop_strings_make_the_engine_detokenize(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    await chunks_of(client, Sampling(stop=("END",), temperature=0.5))
    sent = engine.requests[0].sampling_params
    assert (sent["stop"], sent["detokenize"], sent["temperature"]) == (["END"], True, 0.5)


async def test_a_seed_is_sent_only_where_it_is_safe(engine: ScriptedEngine, client: HttpEngineClient) -> None:
    seeded = HttpEngineClient(engine.url, send_seed=True)
    await chunks_of(client, Sampling(seed=7))
    await chunks_of(seeded, Sampling(seed=7))
    await seeded.close()
    assert [request.sampling_params.get("seed") for request in engine.requests] == [None, 7]


async def test_a_prompt_that_fills_the_context_is_refused_without_asking_the_engine(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    with pytest.raises(ContextOverflow, match="64 tokens leaves no room in the engine's context of 64"):
        await anext(aiter(client.stream([1] * 64, Sampling(), request_id="call")))
    assert engine.requests == []


async def test_max_tokens_is_cut_to_the_room_that_is_left(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    _ = [chunk async for chunk in client.stream([1] * 60, Sampling(max_tokens=50), request_id="call")]
    assert engine.requests[0].sampling_params["max_tokens"] == 4


@pytest.mark.parametrize("kind", ["short_logprobs", "nan_logprobs", "no_logprobs"])
async def test_bad_logprobs_spoil_the_generation_and_are_never_padded(
    kind: str, client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    """Invariant 3: from the first bad piece on there are none; the tokens and versions still arrive."""
    engine.fail_next(Fault(kind=kind, after=4))  # type: ignore[arg-type]
    chunks = await chunks_of(client)
    assert ids(chunks) == TEN
    assert [chunk.logprobs is None for chunk in chunks] == [False] * 4 + [True] * 6
    assert chunks[-1].versions == [VersionSpan(0, 0, 10)]


@pytest.mark.parametrize("kind", ["die", "error"])
@pytest.mark.parametrize("after", [0, 1, 5])
async def test_an_engine_that_dies_in_a_stream_is_unavailable_and_what_came_before_is_kept(
    kind: str, after: int, client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    engine.fail_next(Fault(kind=kind, after=after))  # type: ignore[arg-type]
    got: list[TokenChunk] = []
    with pytest.raises(EngineUnavailable):
        await collect(client, got)
    assert ids(got) == TEN[:after]
    assert all(chunk.finish_reason is None for chunk in got)


async def test_a_stalled_engine_is_unavailable_after_the_stall_timeout(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    engine.fail_next(Fault(kind="stall", after=2))
    with pytest.raises(EngineUnavailable, match=r"sent no token for 0\.2 s"):
        await chunks_of(client)
    await engine.until(lambda: engine.requests[0].aborted)


async def test_a_queued_request_waits_longer_than_the_stall_timeout(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    """The first token has a timeout of its own: a queue or a drain is no stall."""
    patient = HttpEngineClient(engine.url, timeouts=EngineTimeouts(stall_s=0.01, first_token_s=60.0))
    engine.hold()
    reading = asyncio.ensure_future(anext(aiter(patient.stream(PROMPT, Sampling(), request_id="call"))))
    await engine.until(lambda: engine.running == 1)
    assert (await asyncio.wait([reading], timeout=0.05))[0] == set()
    engine.release()
    assert (await reading).token_ids == TEN[:1]
    await patient.close()


async def test_a_refusal_that_may_pass_differs_from_one_that_does_not(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    engine.fail_next(Fault(kind="refuse"))
    with pytest.raises(EngineUnavailable, match="503"):
        await chunks_of(client)
    with pytest.raises(EngineError, match="400") as refused:
        await anext(aiter(client.stream([], Sampling(), request_id="call")))
    assert not isinstance(refused.value, EngineUnavailable)


async def test_closing_the_iterator_aborts_the_request(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    engine.hold()
    engine.allow(1)
    stream = client.stream(PROMPT, Sampling(), request_id="call")
    assert (await anext(stream)).token_ids == TEN[:1]
    await stream.aclose()  # type: ignore[attr-defined]
    await engine.until(lambda: engine.requests[0].aborted and engine.running == 0)


async def test_a_refused_connection_is_unavailable_everywhere(engine: ScriptedEngine) -> None:
    client = HttpEngineClient(engine.url)
    await engine.crash()
    assert not await client.healthy()
    for question in (client.version(), client.context_length(), chunks_of(client)):
        with pytest.raises(EngineUnavailable, match=engine.url):
            await question
    await client.close()


async def test_an_unhealthy_engine_says_so(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    assert await client.healthy()
    engine.is_healthy = False
    assert not await client.healthy()


async def test_requests_after_a_known_swap_share_no_prefix_cache_with_those_before(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    """Case 56 in `keep` mode, where the engine keeps old prefix blocks: the salt keeps them apart."""
    await chunks_of(client)
    engine.label = "7"
    await client.version()
    await chunks_of(client)
    assert [request.cache_salt for request in engine.requests] == ["version 0", "version 7"]


async def test_a_generation_tells_the_client_of_a_swap(client: HttpEngineClient, engine: ScriptedEngine) -> None:
    await chunks_of(client)
    engine.label = "3"
    await chunks_of(client)  # its spans say 3
    await chunks_of(client)
    assert engine.requests[-1].cache_salt == "version 3"


async def test_one_connection_serves_all_generations_and_one_all_questions(
    client: HttpEngineClient, engine: ScriptedEngine
) -> None:
    for _ in range(5):
        await chunks_of(client)
        await client.version()
    assert engine._runner is not None
    assert engine._runner.server is not None
    assert len(engine._runner.server.connections) == 2


async def test_a_hundred_requests_at_once_keep_their_answers_apart() -> None:
    async with ScriptedEngine(lambda prompt_ids, *_: [prompt_ids[0]] * 20, stream_interval=3) as engine:
        client = HttpEngineClient(engine.url)

        async def one(number: int) -> list[int]:
            return ids([chunk async for chunk in client.stream([number], Sampling(), request_id=str(number))])

        answers = await asyncio.gather(*(one(number) for number in range(100)))
        assert answers == [[number] * 20 for number in range(100)]
        await client.close()


def test_the_record_of_a_request_holds_what_was_sampled() -> None:
    request = Request(request_id="a", prompt_ids=[1], sampling_params={})
    assert (request.token_ids, request.finish_reason, request.aborted) == ([], None, False)


async def test_an_adapter_is_asked_for_by_name_and_without_one_the_model_itself(engine: ScriptedEngine) -> None:
    plain, adapted = HttpEngineClient(engine.url), HttpEngineClient(engine.url, model="adapter")
    for client in (plain, adapted):
        await chunks_of(client)
        await client.close()
    assert [request.model for request in engine.requests] == [None, "adapter"]
