"""HttpEngineClient against an engine that breaks its contract: one named error, and no sampled token is lost."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from itertools import chain, repeat
from typing import Any

import pytest
from aiohttp import web
from raw_server import CLOSE, WAIT, chunked, raw_server, sized

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineTimeouts
from agentrl.engine.control import EngineControl
from agentrl.errors import EngineError, EngineUnavailable, SwapError
from agentrl.types import Sampling, TokenChunk, VersionSpan

DEEP = b"[" * 100_000


class RawEngine:
    """Answers with the very bytes that it is given."""

    def __init__(self) -> None:
        self.url = ""
        self.events: list[Any] = []  # bytes, or what is written as JSON
        self.refusal: bytes | None = None  # the body of a 400; b"" is never sent whole
        self.models: Any = {"data": [{"id": "raw", "max_model_len": 64}]}
        self.weight_info: Any = {"weight_version": "default"}

    async def answer(self, http: web.Request) -> web.StreamResponse:
        if http.path == "/v1/models":
            return web.Response(body=as_bytes(self.models))
        if http.path == "/weight_info":
            return web.Response(body=as_bytes(self.weight_info))
        response = web.StreamResponse(status=200 if self.refusal is None else 400)
        response.content_type = "text/plain"
        response.charset = "utf-8"
        await response.prepare(http)
        if self.refusal == b"":
            await asyncio.Event().wait()
        await response.write(self.refusal or b"")
        for event in self.events:
            await response.write(b"data: " + as_bytes(event) + b"\n\n")
        return response


def as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    engine = RawEngine()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", engine.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield engine
    await runner.cleanup()


@pytest.fixture
async def client(engine: RawEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(engine.url, timeouts=EngineTimeouts(first_token_s=0.3))
    yield client
    await client.close()


def choice(*token_ids: Any, logprob: Any = -0.5, **fields: Any) -> dict[str, Any]:
    content = [{"token_id": token_id, "logprob": logprob} for token_id in token_ids]
    return {"token_ids": list(token_ids), "logprobs": {"content": content}, "finish_reason": None} | fields


def event(*token_ids: Any, **fields: Any) -> dict[str, Any]:
    return {"choices": [choice(*token_ids, **fields)]}


def last(*token_ids: Any, **fields: Any) -> dict[str, Any]:
    spans = [{"version": "default", "start": 0, "end": len(token_ids)}]
    return event(*token_ids, **{"finish_reason": "stop", "weight_versions": spans} | fields)


async def collect(client: HttpEngineClient, into: list[TokenChunk]) -> None:
    async for chunk in client.stream([1, 2], Sampling(max_tokens=10), request_id="call"):
        into.append(chunk)


@asynccontextmanager
async def client_of(answer: Iterable[bytes], **timeouts: float) -> AsyncIterator[HttpEngineClient]:
    """Of an engine that is asked for nothing but generations, and answers with these bytes."""
    async with raw_server(answer) as server:
        client = HttpEngineClient(server.url, timeouts=EngineTimeouts(**timeouts))
        client._version, client._context_length = 0, 64
        yield client
        await client.close()


MALFORMED: dict[str, tuple[Any, str]] = {
    "choices is null": ({"choices": None}, r"Expected `array`, got `null` - at `\$.choices`"),
    "choices is a string": ({"choices": "x"}, r"Expected `array`, got `str` - at `\$.choices`"),
    "a choice is a number": ({"choices": [5]}, r"Expected `object`, got `int` - at `\$.choices\[0\]`"),
    "token_ids is an object": (event(token_ids={"a": 1}), r"got `object` - at `\$.choices\[0\].token_ids`"),
    "token_ids is a string": (event(token_ids="abc"), r"got `str` - at `\$.choices\[0\].token_ids`"),
    "an id is a string": (event("a"), r"Expected `int`, got `str` - at `\$.choices\[0\].token_ids\[0\]`"),
    "an id is null": (event(5, None), r"Expected `int`, got `null` - at `\$.choices\[0\].token_ids\[1\]`"),
    "an id is a float": (event(65.0), r"Expected `int`, got `float`"),
    "an id is a truth value": (event(True), r"Expected `int`, got `bool`"),
    "an id is negative": (event(-1), r"Expected `int` >= 0"),
    "an id needs more than 31 bits": (event(2**31), r"Expected `int` <= 2147483647"),
    "an id needs more than 64 bits": (event(2**64), r"Expected `int` <= 2147483647"),
    "it is a list": ([], "Expected `object`, got `array`"),
    "it is no JSON": (b"{", "breaks its contract"),
    "it is deep": (b'{"error": ' + DEEP, "recursion"),
    "a part that is not read is deep": (b'{"choices": [{"logprobs": ' + DEEP, "recursion"),
    "a string is no Unicode": (b'{"choices": [{"stop_reason": "\\ud800"}]}', "surrogates"),
}


@pytest.mark.parametrize("malformed", MALFORMED)
async def test_a_malformed_event_is_an_engine_error_that_names_what_is_wrong(
    malformed: str, client: HttpEngineClient, engine: RawEngine
) -> None:
    """And what came before it is with the caller, who counts it (invariant 2)."""
    sent, message = MALFORMED[malformed]
    engine.events = [event(7, 8), sent]
    got: list[TokenChunk] = []
    with pytest.raises(EngineError, match=message) as broken:
        await collect(client, got)
    assert not isinstance(broken.value, EngineUnavailable)
    assert client.url in str(broken.value)
    assert got == [TokenChunk(token_ids=[7, 8], logprobs=[-0.5, -0.5])]


@pytest.mark.parametrize("left_out", [None, []], ids=["null", "none"])
@pytest.mark.parametrize("answer", [event, last], ids=["in the middle", "at the end"])
async def test_logprobs_of_tokens_without_ids_are_an_engine_error_and_no_empty_answer(
    answer: Any, left_out: Any, client: HttpEngineClient, engine: RawEngine
) -> None:
    """Case 2: the text and 5 logprobs. Encoding the text might give other ids than were sampled, so nobody does."""
    engine.events = [event(7, 8), answer(1, 2, 3, 4, 5, token_ids=left_out, text="hello")]
    got: list[TokenChunk] = []
    with pytest.raises(EngineError, match="gave 5 logprobs of tokens whose ids it left out") as broken:
        await collect(client, got)
    assert not isinstance(broken.value, EngineUnavailable)
    assert got == [TokenChunk(token_ids=[7, 8], logprobs=[-0.5, -0.5])]


SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown finish reason": (last(9, finish_reason="bored"), "ended a generation with 'bored', which is unknown"),
    "a finish reason that is no string": (last(9, finish_reason=[]), r"ended a generation with \[\], which is unknown"),
    "a stop reason of no known type": (last(9, stop_reason={"a": 1}), r"gave {'a': 1} as stop_reason"),
    "more tokens than were asked for": (event(*[9] * 9), "sampled 11 tokens; max_tokens was 10"),
    "more tokens than were asked for at the end": (last(*[9] * 9), "sampled 11 tokens; max_tokens was 10"),
}


@pytest.mark.parametrize("spoilt", SPOILT)
async def test_tokens_that_came_with_a_broken_promise_are_handed_on_before_the_error(
    spoilt: str, client: HttpEngineClient, engine: RawEngine
) -> None:
    """They were sampled, so they count."""
    sent, message = SPOILT[spoilt]
    engine.events = [event(7, 8), sent]
    got: list[TokenChunk] = []
    with pytest.raises(EngineError, match=message):
        await collect(client, got)
    assert [chunk.token_ids for chunk in got] == [[7, 8], sent["choices"][0]["token_ids"]]
    assert [chunk.finish_reason for chunk in got] == [None, None]


@pytest.mark.parametrize(
    "spans",
    [
        None,
        "x",
        {},
        5,
        [{}],
        [[0, 0, 1]],
        [{"version": "0", "start": "0", "end": "1"}],
        [{"version": "0", "start": 0, "end": 2}],
        [{"version": -1, "start": 0, "end": 1}],
        [{"version": "9" * 5000, "start": 0, "end": 1}],
    ],
    ids=str,
)
async def test_wrong_version_spans_leave_the_tokens_without_any(
    spans: Any, client: HttpEngineClient, engine: RawEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """None would let the caller fall back on the version it knows of; a wrong claim must not be trained at all."""
    engine.events = [last(7, weight_versions=spans)]
    got: list[TokenChunk] = []
    with caplog.at_level(logging.WARNING):
        await collect(client, got)
    assert got == [TokenChunk(token_ids=[7], logprobs=[-0.5], finish_reason="stop", versions=[])]
    assert "is untrainable: the engine" in caplog.text
    assert len(caplog.text) < 500


@pytest.mark.parametrize("logprob", [5.0, 2e-6, True, False, "-1", None, 10**400])
async def test_a_logprob_that_cannot_be_one_leaves_the_tokens_untrainable(
    logprob: Any, client: HttpEngineClient, engine: RawEngine
) -> None:
    engine.events = [last(7, logprob=logprob)]
    got: list[TokenChunk] = []
    await collect(client, got)
    assert got == [
        TokenChunk(token_ids=[7], logprobs=None, finish_reason="stop", versions=[VersionSpan(0, 0, 1)]),
    ]


@pytest.mark.parametrize(
    ("error", "may_pass"), [({"code": 500}, True), ("x", True), (None, True), ({"code": 400}, False)]
)
async def test_an_error_event_may_pass_unless_it_says_that_the_request_is_bad(
    error: Any, may_pass: bool, client: HttpEngineClient, engine: RawEngine
) -> None:
    engine.events = [{"error": error}]
    with pytest.raises(EngineError, match="failed inside a generation") as failed:
        await collect(client, [])
    assert isinstance(failed.value, EngineUnavailable) == may_pass


async def test_a_refusal_in_bytes_that_are_no_text_is_still_an_engine_error(
    client: HttpEngineClient, engine: RawEngine
) -> None:
    engine.refusal = b"\xff\xfe no"
    with pytest.raises(EngineError, match=r"answered 400: .* no"):
        await collect(client, [])


async def test_a_refusal_that_is_broken_off_is_still_a_refusal() -> None:
    refusal = sized(b"token 99999 is out of the vocabulary", "400 Bad Request")[:-10]
    async with client_of([refusal, CLOSE]) as client:
        with pytest.raises(EngineError, match="answered 400: token 99999 is out of the") as refused:
            await collect(client, [])
        assert not isinstance(refused.value, EngineUnavailable)


async def test_a_comment_is_no_first_token() -> None:
    """A queued request has the first token's timeout still."""
    async with client_of([chunked(b": ping\n\n", end=b""), WAIT], first_token_s=0.4, stall_s=0.2) as client:
        with pytest.raises(EngineUnavailable, match=r"sent no token for 0\.4 s"):
            await collect(client, [])


async def test_an_engine_that_sends_nothing_but_comments_after_a_token_has_stalled() -> None:
    token, ping = b"data: " + as_bytes(event(7)) + b"\n\n", b"8\r\n: ping\n\n\r\n"
    async with client_of(chain([chunked(token, end=b"")], repeat(ping)), stall_s=0.2) as client:
        got: list[TokenChunk] = []
        with pytest.raises(EngineUnavailable, match=r"sent no token for 0\.2 s"):
            await collect(client, got)
        assert [chunk.token_ids for chunk in got] == [[7]]


async def test_tokens_that_came_right_before_the_connection_was_lost_are_handed_on() -> None:
    """Invariant 2: failover goes on after them."""
    answer = chunked(b"data: " + as_bytes(event(7, 8)) + b"\n\n", end=b"")
    async with client_of([answer, CLOSE]) as client:
        got: list[TokenChunk] = []
        with pytest.raises(EngineUnavailable, match="broke off a generation: it closed the connection"):
            await collect(client, got)
        assert [chunk.token_ids for chunk in got] == [[7, 8]]


async def test_a_refusal_that_never_ends_is_given_up(client: HttpEngineClient, engine: RawEngine) -> None:
    engine.refusal = b""
    with pytest.raises(EngineUnavailable, match=r"gave no answer for 0\.3 s"):
        await collect(client, [])


@pytest.mark.parametrize(
    "models",
    [[], {}, {"data": None}, {"data": []}, {"data": ["x"]}, {"data": 5}, DEEP]
    + [{"data": [{"max_model_len": length}]} for length in (True, 0, -5, None, "64", 64.0)],
    ids=lambda models: str(models)[:40],
)
async def test_a_context_length_that_cannot_be_one_is_refused_and_asked_for_again(
    models: Any, client: HttpEngineClient, engine: RawEngine
) -> None:
    right, engine.models = engine.models, models
    with pytest.raises(EngineError, match=r"/v1/models breaks its contract"):
        await client.context_length()
    engine.models = right
    assert await client.context_length() == 64


async def test_an_adapter_of_the_model_has_no_context_length_of_its_own(
    client: HttpEngineClient, engine: RawEngine
) -> None:
    """As vLLM lists one: with `"max_model_len": null`."""
    engine.models = {"data": [{"id": "policy", "max_model_len": 64}, {"id": "adapter", "max_model_len": None}]}
    assert await client.context_length() == 64


@pytest.mark.parametrize(
    "info", [[], {}, {"weight_version": 5}, {"weight_version": "x"}, {"weight_version": "9" * 5000}], ids=str
)
async def test_a_version_that_cannot_be_one_is_an_engine_error(
    info: Any, client: HttpEngineClient, engine: RawEngine
) -> None:
    engine.weight_info = info
    with pytest.raises(EngineError, match=r"breaks its contract|names its weights"):
        await client.version()


async def test_a_control_call_refused_in_bytes_that_are_no_text_is_a_swap_error(engine: RawEngine) -> None:
    engine.refusal = b"\xff\xfe no"
    control = EngineControl(engine.url)
    with pytest.raises(SwapError, match=r"/resume answered 400: .* no"):
        await control.resume()
    await control.close()


async def test_a_control_answer_nested_too_deep_is_a_swap_error(engine: RawEngine) -> None:
    engine.weight_info = b'{"a": ' + DEEP
    control = EngineControl(engine.url)
    with pytest.raises(SwapError, match="answered no JSON object"):
        await control.version()
    await control.close()
