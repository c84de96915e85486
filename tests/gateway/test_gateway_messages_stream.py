"""Streamed Anthropic answers: the SDK folds them to what the answer without streaming is, however they were cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anthropic
import orjson
import pytest
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from messages_builders import RESPONDING, answer, encoded, events_of, pieces, request, sdk, streamed
from pydantic import TypeAdapter
from test_gateway_messages_response import ARGUMENTS

from agentrl.gateway.deltas import Answer, Content, Delta, Piece, Reasoning, ToolCall
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.refusal import Refusal

CALL = ToolCall("a1B2c3D4e", "weather", '{"city": "Paris"}')
ASKED: dict[str, Any] = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}


def folded(stream: Sequence[bytes], *, beta: bool = False) -> dict[str, Any]:
    """What the SDK makes of a stream that arrives in these pieces of the network's."""
    client = sdk(stream)
    with (client.beta if beta else client).messages.stream(**ASKED) as events:
        return events.get_final_message().to_dict()


def whole(finished: Answer, *, beta: bool = False) -> dict[str, Any]:
    client = sdk(encoded(finished))
    return (client.beta if beta else client).messages.create(**ASKED).to_dict()


@st.composite
def answers(draw: st.DrawFn) -> tuple[Answer, list[Piece]]:
    """Random answers, thinking first, and the pieces in which they came."""
    calls = st.builds(ToolCall, st.text("abc123", min_size=9, max_size=9), st.text(min_size=1), ARGUMENTS)
    deltas: list[Delta] = draw(st.lists(st.text().map(Reasoning), max_size=3))
    deltas += draw(st.lists(st.text().map(Content) | calls, max_size=5))
    finished = answer(
        deltas,
        finish_reason=draw(st.sampled_from(["stop", "length"])),
        stop=draw(st.none() | st.text(min_size=1)),
        num_prompt_ids=draw(st.integers(1, 9)),
        num_sampled=draw(st.integers(0, 9)),
        reasoning_tokens=draw(st.integers(0, 9)),
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(deltas)), max_size=4)))
    return finished, pieces(*(deltas[a:b] for a, b in zip([0, *cuts], [*cuts, len(deltas)], strict=True)))


@given(answers(), st.integers(1, 200), st.booleans())
def test_a_stream_folds_to_the_answer_without_streaming(
    drawn: tuple[Answer, list[Piece]], network: int, beta: bool
) -> None:
    finished, parts = drawn
    stream = streamed(finished, parts)
    cut = [stream[at : at + network] for at in range(0, len(stream), network)]
    assert folded(cut, beta=beta) == whole(finished, beta=beta)


@given(answers())
def test_every_event_is_of_the_sdks_types_and_blocks_open_and_close_one_after_another(
    drawn: tuple[Answer, list[Piece]],
) -> None:
    events = events_of(streamed(*drawn))
    adapter: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for found in events:
        adapter.validate_python(found)
    assert events[0]["type"] == "message_start"
    assert [found["type"] for found in events[-2:]] == ["message_delta", "message_stop"]
    state: list[int] = []
    for found in events[1:-2]:
        if found["type"] == "content_block_start":
            assert found["index"] == len(state)
            state.append(1)
        else:
            assert (found["index"], state[-1]) == (len(state) - 1, 1)
            state[-1] = 0 if found["type"] == "content_block_stop" else 1
    assert 1 not in state


def test_text_goes_out_with_the_piece_it_came_with() -> None:
    encoder = MESSAGES.stream(request(), RESPONDING)
    [start] = events_of(encoder.begin([1, 2, 3]))
    assert start["message"]["usage"]["input_tokens"] == 3
    seen = [events_of(encoder.piece(0, part)) for part in pieces([Reasoning("hm")], [Content("a")], [Content("b")], [])]
    assert [[found["type"] for found in some] for some in seen] == [
        ["content_block_start", "content_block_delta"],
        ["content_block_delta", "content_block_stop", "content_block_start", "content_block_delta"],
        ["content_block_delta"],
        [],
    ]
    assert seen[1][0]["delta"]["type"] == "signature_delta"
    assert seen[2][0]["delta"] == {"type": "text_delta", "text": "b"}


def test_text_after_a_call_belongs_into_the_text_before_it() -> None:
    deltas: list[Delta] = [Content("a"), CALL, Content("b")]
    found = folded([streamed(answer(deltas), pieces(deltas))])
    assert [block["type"] for block in found["content"]] == ["text", "tool_use"]
    assert found["content"][0]["text"] == "ab"


def test_thinking_after_text_is_a_block_of_its_own_where_it_came() -> None:
    deltas: list[Delta] = [Reasoning("a"), Content("b"), Reasoning("c")]
    found = folded([streamed(answer(deltas), pieces(deltas))])
    assert [block.get("thinking", block.get("text")) for block in found["content"]] == ["a", "b", "c"]


def test_case_40_a_stream_that_was_cut_off_in_a_call_ends_with_max_tokens() -> None:
    """Case 40."""
    finished = answer([Content("<tool_call>")], finish_reason="length")
    found = folded([streamed(finished, pieces([Content("<tool_call>")]))])
    assert (found["stop_reason"], [block["type"] for block in found["content"]]) == ("max_tokens", ["text"])


def test_a_failure_in_the_middle_raises_in_the_client_and_never_ends_the_message() -> None:
    encoder = MESSAGES.stream(request(), RESPONDING)
    stream = encoder.begin([1]) + encoder.piece(0, pieces([Content("a")])[0])
    stream += encoder.fail(Refusal(503, "engine_lost", "three engines failed"))
    assert "message_stop" not in [found["type"] for found in events_of(stream)]
    with pytest.raises(anthropic.APIStatusError) as caught:
        folded([stream])
    assert (caught.value.type, caught.value.api_message) == ("overloaded_error", "three engines failed")


def test_keep_alives_change_nothing() -> None:
    finished = answer([Content("ab")])
    encoder = MESSAGES.stream(request(), RESPONDING)
    before = encoder.begin(finished.call.prompt_token_ids)
    parts = [encoder.piece(0, part) for part in pieces([Content("a")], [Content("b")])]
    stream = encoder.keep_alive().join([before, *parts, encoder.end([finished])])
    assert folded([stream]) == whole(finished)
    assert orjson.dumps({"type": "ping"}) in stream


def test_a_stream_tells_that_no_context_edit_was_applied() -> None:
    allowed = {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}
    finished = answer([Content("a")])
    stream = streamed(finished, pieces([Content("a")]), **allowed)
    found = folded([stream], beta=True)
    assert found["context_management"] == orjson.loads(encoded(finished, **allowed))["context_management"]
