"""Builders for tests of the Messages dialect: answers as the core makes them, and the Anthropic SDK over our bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import orjson
from gateway_builders import Opened

from agentrl.gateway.deltas import Answer, Delta, Piece, message_of
from agentrl.gateway.dialects.base import Responding
from agentrl.gateway.dialects.messages import MESSAGES, decode
from agentrl.gateway.dialects.messages_request import MessagesRequest
from agentrl.gateway.request import Conversation
from agentrl.types import Call, FinishReason, Sampling

RESPONDING = Responding(
    response_id="msg_1", created=1, model="policy", token_bytes=lambda token_id: b"", text=lambda token_ids: ""
)
WEATHER = {"name": "weather", "description": "of a city", "input_schema": {"type": "object"}}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if isinstance(content[0], str) else list(content)}


def assistant(*content: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def use(call_id: str, name: str = "weather", **tool_input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": tool_input}


def result(call_id: str, content: Any = "rain", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def body(**fields: Any) -> bytes:
    """A request's body: one user message, unless told otherwise."""
    return orjson.dumps(
        {"model": "policy", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}], **fields}
    )


def conversation_of(sent: bytes) -> Conversation:
    """The conversation that a request's body is decoded to."""
    [found] = decode(sent)[0].prompts
    assert isinstance(found, Conversation)
    return found


def prompt(*messages: dict[str, Any], **fields: Any) -> Conversation:
    return conversation_of(body(messages=messages, **fields))


def request(**fields: Any) -> MessagesRequest:
    return decode(body(**fields))[1]


def answer(
    deltas: Iterable[Delta],
    *,
    finish_reason: FinishReason = "stop",
    stop: str | None = None,
    num_prompt_ids: int = 7,
    num_sampled: int = 3,
    reasoning_tokens: int = 0,
) -> Answer:
    call = Call(
        call_id="msg_1",
        prompt_token_ids=list(range(num_prompt_ids)),
        prompt_digest="",
        token_ids=list(range(num_sampled)),
        logprobs=None,
        versions=[],
        finish_reason=finish_reason,
        engine_id="e",
        sampling=Sampling(),
        message=message_of(deltas),
    )
    return Answer(call=call, stop=stop, reasoning_tokens=reasoning_tokens)


def pieces(*deltas: Sequence[Delta]) -> list[Piece]:
    return [Piece(token_ids=[], logprobs=None, deltas=list(some)) for some in deltas]


def encoded(finished: Answer, **fields: Any) -> bytes:
    return MESSAGES.encode([finished], request(**fields), RESPONDING)


def streamed(finished: Answer, parts: Iterable[Piece], **fields: Any) -> bytes:
    """The whole stream of an answer that came in these parts."""
    encoder = MESSAGES.stream(request(**fields), RESPONDING)
    events = [encoder.begin(finished.call.prompt_token_ids)]
    events += [encoder.piece(0, part) for part in parts]
    return b"".join([*events, encoder.end([finished])])


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The events' data; each is named by its type."""
    found = []
    for text in stream.decode().split("\n\n")[:-1]:
        name, data = text.split("\n")
        event = orjson.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def sdk(
    answered: bytes | Sequence[bytes], sent: list[bytes] | None = None, *, status: int = 200
) -> anthropic.Anthropic:
    """Anthropic's client, whose every request is answered with these bytes (as they are cut) and kept in `sent`."""
    is_stream = not isinstance(answered, bytes)

    def handler(received: httpx2.Request) -> httpx2.Response:
        if sent is not None:
            sent.append(received.read())
        kind = "text/event-stream" if is_stream else "application/json"
        content = answered if isinstance(answered, bytes) else iter(answered)
        return httpx2.Response(status, content=content, headers={"content-type": kind})

    http = anthropic.DefaultHttpxClient(transport=httpx2.MockTransport(handler))
    return anthropic.Anthropic(api_key="key", base_url="http://gateway", http_client=http, max_retries=0)


@asynccontextmanager
async def client(session: Opened, *, api_key: str | None = None) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's client on a served session."""
    base_url = session.base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(
        base_url=base_url, api_key=api_key or session.api_key, auth_token=None, max_retries=0
    ) as sdk:
        yield sdk
