"""Builders for the Responses API's tests: answers, their events, and the SDK's own types as judges."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pydantic
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from agentrl.gateway.deltas import Answer, Content, Delta, Piece, Reasoning, ToolCall, message_of
from agentrl.gateway.dialects.base import Responding
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.dialects.responses_request import Asked
from agentrl.gateway.request import Conversation, TurnRequest
from agentrl.types import Call, FinishReason, Sampling

RESPONSE_ID = "resp_0123abcd"
PROMPT_IDS = [1, 2, 3, 4]
WEATHER_TOOL = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}
CALL = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
_event_type: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)


def responding(response_id: str = RESPONSE_ID) -> Responding:
    """Token i is byte i % 256."""
    return Responding(
        response_id=response_id,
        created=1_700_000_000,
        model="policy",
        token_bytes=lambda token_id: bytes([token_id % 256]),
        text=lambda token_ids: bytes(token_id % 256 for token_id in token_ids).decode(errors="replace"),
    )


def decoded(**body: Any) -> tuple[TurnRequest, Asked]:
    return RESPONSES.decode(json.dumps(body).encode())


def conversation(**body: Any) -> Conversation:
    [prompt] = decoded(**body)[0].prompts
    assert isinstance(prompt, Conversation)
    return prompt


def answer_of(
    deltas: Sequence[Delta],
    *,
    token_ids: Sequence[int] = (5, 6, 7),
    finish_reason: FinishReason = "stop",
    response_id: str = RESPONSE_ID,
    top_logprobs: list[list[tuple[int, float]]] | None = None,
    reasoning_tokens: int = 0,
) -> Answer:
    call = Call(
        call_id=response_id,
        prompt_token_ids=PROMPT_IDS,
        prompt_digest="",
        token_ids=list(token_ids),
        logprobs=[-0.5 * (index + 1) for index in range(len(token_ids))],
        versions=[],
        finish_reason=finish_reason,
        engine_id="e",
        sampling=Sampling(temperature=0.7),
        message=message_of(deltas),
        ended_at=1_700_000_009.5,
    )
    return Answer(call=call, logprobs=call.logprobs, top_logprobs=top_logprobs, reasoning_tokens=reasoning_tokens)


def pieces_of(answer: Answer, deltas: Sequence[Delta], cuts: Sequence[int]) -> list[Piece]:
    """The answer's tokens and deltas in len(cuts) + 1 pieces; cut i says how many tokens piece i may have."""
    call = answer.call
    assert call.logprobs is not None
    pieces, begun, left = [], 0, list(deltas)
    for cut in [*cuts, len(call.token_ids)]:
        end = min(begun + cut, len(call.token_ids))
        last = len(pieces) == len(cuts)
        now = left if last else left[: max(cut, 1)]
        left = left[len(now) :]
        top = None if answer.top_logprobs is None else answer.top_logprobs[begun:end]
        ids_now, logprobs_now = call.token_ids[begun:end], call.logprobs[begun:end]
        pieces.append(Piece(token_ids=ids_now, logprobs=logprobs_now, top_logprobs=top, deltas=now))
        begun = end
    return pieces


def streamed(answer: Answer, pieces: Sequence[Piece], **body: Any) -> bytes:
    """The whole event stream of one response."""
    encoder = RESPONSES.stream(decoded(input="hi", stream=True, **body)[1], responding(answer.call.call_id))
    parts = [encoder.begin(answer.call.prompt_token_ids)]
    for piece in pieces:
        parts += [encoder.piece(0, piece), encoder.keep_alive()]
    return b"".join([*parts, encoder.end([answer])])


def encoded(answer: Answer, **body: Any) -> dict[str, Any]:
    request = decoded(input="hi", **body)[1]
    return dict(json.loads(RESPONSES.encode([answer], request, responding(answer.call.call_id))))


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """The data of a stream's events, each under its own name, each as the SDK's types have it."""
    events = []
    for block in stream.decode().split("\n\n"):
        if not block or block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
        if event["type"] != "error":  # it carries a second form of itself, see `ResponsesStream.fail`
            assert_known(_event_type.validate_json(data.removeprefix("data: "), strict=True))
    return events


def checked_response(data: dict[str, Any]) -> Response:
    """As the SDK's type, strictly: a missing, unknown or mistyped field fails."""
    response = Response.model_validate_json(json.dumps(data), strict=True)
    assert_known(response)
    return response


def assert_known(value: Any) -> None:
    """No field at any depth that the SDK's types do not have."""
    if isinstance(value, pydantic.BaseModel):
        assert not value.model_extra, f"{type(value).__name__}: {value.model_extra}"
        for name in type(value).model_fields:
            assert_known(getattr(value, name))
    elif isinstance(value, list):
        for item in value:
            assert_known(item)


def plain(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Items as they were sent: without what the SDK's helpers add."""
    found = [item.to_dict() for item in items]
    for item in found:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    return found


texts = st.text(st.characters(codec="utf-8"), max_size=12)
some_text = texts.filter(bool)


tool_calls = st.builds(
    ToolCall,
    id=st.just(""),
    name=st.sampled_from(["weather", "now"]),
    arguments=st.one_of(st.just('{"city": "Paris"}'), st.just("{}"), texts),
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[Answer, list[Delta]]:
    """An answer with the deltas that it came in: reasoning first, then text and calls in any order."""
    reasoning = draw(st.lists(st.builds(Reasoning, some_text), max_size=3))
    rest = draw(st.lists(st.one_of(st.builds(Content, some_text), tool_calls), max_size=5))
    numbered = [
        msgspec.structs.replace(d, id=f"call{i:05}") if isinstance(d, ToolCall) else d for i, d in enumerate(rest)
    ]
    deltas = [*reasoning, *numbered]
    token_ids = draw(st.lists(st.integers(0, 300), min_size=1, max_size=8))
    top = draw(st.one_of(st.none(), st.just([[(token, -0.5), (9, -2.0)] for token in token_ids])))
    answer = answer_of(
        deltas,
        token_ids=token_ids,
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        top_logprobs=top,
        reasoning_tokens=draw(st.integers(0, len(token_ids))),
    )
    return answer, deltas


cuts = st.lists(st.integers(0, 4), max_size=6)
