"""Responses, whole and streamed: what they hold, and that both say the same. The SDK's types and streams judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from responses_builders import (
    PROMPT_IDS,
    WEATHER_TOOL,
    answer_of,
    answers,
    checked_response,
    cuts,
    decoded,
    encoded,
    events_of,
    pieces_of,
    plain,
    responding,
    streamed,
)

from agentrl.gateway.deltas import Answer, Content, Delta, Piece, Reasoning, ToolCall
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.refusal import Refusal

LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
WHOLE = [Reasoning("hm"), Content("Let me "), Content("look."), ToolCall("c1", "weather", '{"city": "Paris"}')]


def sdk_over(body: bytes, content_type: str) -> openai.OpenAI:
    """The real SDK over a transport that answers every request with these bytes."""
    reply = httpx.Response(200, content=body, headers={"content-type": content_type})
    client = httpx.Client(transport=httpx.MockTransport(lambda request: reply))
    return openai.OpenAI(base_url="http://gateway/v1", api_key="k", http_client=client, max_retries=0)


# Whole responses


@given(answers())
def test_a_response_is_what_the_sdk_takes_strictly(answered: tuple[Answer, list[Delta]]) -> None:
    answer, _ = answered
    response = checked_response(encoded(answer, tools=[WEATHER_TOOL], tool_choice="required", **LOGPROBS))
    assert response.output_text == (answer.call.message["content"] or "")


def test_the_items_are_reasoning_then_text_then_calls() -> None:
    response = checked_response(encoded(answer_of(WHOLE)))
    reasoning, message, call = response.output
    assert reasoning.type == "reasoning"
    assert (reasoning.summary, [part.text for part in reasoning.content or []]) == ([], ["hm"])
    assert message.type == "message"
    assert [part.type for part in message.content] == ["output_text"]
    assert response.output_text == "Let me look."
    assert call.type == "function_call"
    assert (call.call_id, call.name, call.arguments) == ("c1", "weather", '{"city": "Paris"}')


def test_calls_without_text_have_no_message_beside_them() -> None:
    assert [item["type"] for item in encoded(answer_of(WHOLE[-1:]))["output"]] == ["function_call"]


def test_case_48_an_empty_answer_is_a_message_without_text() -> None:
    response = checked_response(encoded(answer_of([])))
    assert [item.type for item in response.output] == ["message"]
    assert (response.output_text, response.status) == ("", "completed")


def test_case_40_an_answer_that_was_cut_off_is_incomplete() -> None:
    """Case 40."""
    response = checked_response(encoded(answer_of([Reasoning("hm"), Content("Let")], finish_reason="length")))
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert [getattr(item, "status", None) for item in response.output] == ["completed", "incomplete"]


def test_reasoning_that_was_cut_off_is_incomplete() -> None:
    reasoning, _ = encoded(answer_of([Reasoning("hm")], finish_reason="length"))["output"]
    assert reasoning["status"] == "incomplete"


def test_usage_counts_the_ids_and_the_reasoning_among_them() -> None:
    usage = encoded(answer_of(WHOLE, token_ids=[5, 6, 7, 8, 9], reasoning_tokens=2))["usage"]
    assert usage == {
        "input_tokens": len(PROMPT_IDS),
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": len(PROMPT_IDS) + 5,
    }


def test_settings_are_echoed_and_the_temperature_is_the_one_sampled_with() -> None:
    sent: dict[str, Any] = {
        "instructions": "Be brief.",
        "max_output_tokens": 50,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "previous_response_id": "resp_0",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "tool_choice": {"type": "function", "name": "weather"},
        "tools": [WEATHER_TOOL],
        "top_logprobs": 2,
        "user": "u",
    }
    data = encoded(answer_of(WHOLE), temperature=0.1, **sent)
    checked_response(data)
    form = data.pop("text")["format"]
    assert {"type": "json_schema", "name": "n", "schema": {"type": "object"}}.items() <= form.items()
    del sent["text"]
    assert {name: data[name] for name in sent} == sent
    assert data["temperature"] == 0.7


def test_logprobs_stand_beside_every_sampled_token_with_its_bytes_when_asked_for() -> None:
    answer = answer_of(WHOLE, token_ids=[97, 0xC3], top_logprobs=[[(97, -0.5), (98, -1.5)], [(0xC3, -1.0)]])
    [part] = encoded(answer, **LOGPROBS)["output"][1]["content"]
    first, second = part["logprobs"]
    assert (first["token"], first["bytes"], first["logprob"]) == ("a", [97], -0.5)
    assert first["top_logprobs"][1] == {"token": "b", "bytes": [98], "logprob": -1.5}
    assert (second["token"], second["bytes"]) == ("bytes:\\xc3", [0xC3])
    assert encoded(answer)["output"][1]["content"][0]["logprobs"] == []


def test_a_probability_of_zero_is_written_as_a_number() -> None:
    answer = answer_of([Content("a")], token_ids=[97])
    answer.logprobs = [float("-inf")]
    assert encoded(answer, **LOGPROBS)["output"][0]["content"][0]["logprobs"][0]["logprob"] == -9999.0


# Streams


@given(answers(), cuts)
def test_the_last_event_holds_what_a_whole_response_is(answered: tuple[Answer, list[Delta]], at: list[int]) -> None:
    answer, deltas = answered
    last = events_of(streamed(answer, pieces_of(answer, deltas, at), tools=[WEATHER_TOOL], **LOGPROBS))[-1]
    whole = encoded(answer, tools=[WEATHER_TOOL], **LOGPROBS)
    assert last["type"] == f"response.{whole['status']}"
    assert last["response"] == whole


@given(answers(), cuts)
def test_what_is_added_up_from_the_events_is_the_response(answered: tuple[Answer, list[Delta]], at: list[int]) -> None:
    answer, deltas = answered
    events = events_of(streamed(answer, pieces_of(answer, deltas, at), **LOGPROBS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = encoded(answer, **LOGPROBS)["output"]
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == output
    for index, item in enumerate(output):
        of_item = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id") or event["item"]["id"] for event in of_item} == {item["id"]}
        text = "".join(event["delta"] for event in of_item if event["type"].endswith(".delta"))
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


@given(answers(), cuts)
def test_one_item_is_open_at_a_time(answered: tuple[Answer, list[Delta]], at: list[int]) -> None:
    answer, deltas = answered
    is_open = None
    for event in events_of(streamed(answer, pieces_of(answer, deltas, at))):
        if event["type"] == "response.output_item.added":
            assert is_open is None
            is_open = event["output_index"]
        elif "output_index" in event:
            assert event["output_index"] == is_open
            is_open = None if event["type"] == "response.output_item.done" else is_open
    assert is_open is None


@given(answers(), cuts)
def test_logprobs_of_the_deltas_are_the_first_of_those_of_the_text(
    answered: tuple[Answer, list[Delta]], at: list[int]
) -> None:
    answer, deltas = answered
    events = events_of(streamed(answer, pieces_of(answer, deltas, at), **LOGPROBS))
    parts = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    joined = [entry for part in parts for entry in part]
    for done in (event["logprobs"] for event in events if event["type"] == "response.output_text.done"):
        assert len(done) == len(answer.call.token_ids)
        assert joined == done[: len(joined)]


@given(answers(), cuts)
def test_the_sdk_adds_a_stream_up_to_the_whole_response(answered: tuple[Answer, list[Delta]], at: list[int]) -> None:
    answer, deltas = answered
    stream = streamed(answer, pieces_of(answer, deltas, at))
    with sdk_over(stream, "text/event-stream").responses.stream(model="policy", input="hi") as events:
        last = list(events)[-1]
    assert last.type in ("response.completed", "response.incomplete")
    whole = encoded(answer)
    assert plain(last.response.output) == whole["output"]
    assert last.response.status == whole["status"]


@given(answers())
def test_the_sdk_reads_a_whole_response_as_it_was_written(answered: tuple[Answer, list[Delta]]) -> None:
    answer, _ = answered
    whole = encoded(answer)
    body = RESPONSES.encode([answer], decoded(input="hi")[1], responding())
    response = sdk_over(body, "application/json").responses.create(model="policy", input="hi")
    assert plain(response.output) == whole["output"]


def types_of(deltas: Sequence[Delta], **fields: Any) -> list[str]:
    answer = answer_of(deltas, **fields)
    pieces = [Piece(token_ids=[], logprobs=[], deltas=[delta]) for delta in deltas]
    return [event["type"].removeprefix("response.") for event in events_of(streamed(answer, pieces))]


def test_the_events_come_in_the_apis_order() -> None:
    part = ["output_item.added", "content_part.added"]
    end = ["content_part.done", "output_item.done"]
    call = [f"function_call_arguments.{what}" for what in ("delta", "done")]
    assert types_of(WHOLE) == [
        "created",
        "in_progress",
        *[*part, "reasoning_text.delta", "reasoning_text.done", *end],
        *[*part, "output_text.delta", "output_text.delta", "output_text.done", *end],
        *["output_item.added", *call, "output_item.done"],
        "completed",
    ]


def test_text_is_sent_with_the_piece_that_it_came_in() -> None:
    encoder = RESPONSES.stream(decoded(input="hi")[1], responding())
    encoder.begin(PROMPT_IDS)
    sent = encoder.piece(0, Piece(token_ids=[5], logprobs=[-1.0], deltas=[Content("Hel")]))
    assert [event["delta"] for event in events_of(sent) if "delta" in event] == ["Hel"]
    assert encoder.piece(0, Piece(token_ids=[6], logprobs=[-1.0], deltas=[])) == b""


def test_reasoning_that_comes_after_text_goes_on_in_its_item() -> None:
    answer = answer_of(deltas := [Reasoning("a"), Content("b"), Reasoning("c"), Content("d")])
    events = events_of(streamed(answer, [Piece(token_ids=[], logprobs=[], deltas=deltas)]))
    reasoning = [event for event in events if event.get("output_index") == 0]
    assert [event["delta"] for event in reasoning if "delta" in event] == ["a", "c"]
    assert reasoning[-1]["item"]["content"][0]["text"] == "ac"


@pytest.mark.parametrize("first", [Reasoning("a"), Content("a")])
def test_the_sdk_takes_a_stream_whose_reasoning_comes_after_text(first: Delta) -> None:
    answer = answer_of(deltas := [first, Content("b"), Reasoning("c"), Content("d")])
    stream = streamed(answer, [Piece(token_ids=[], logprobs=[], deltas=deltas)])
    with sdk_over(stream, "text/event-stream").responses.stream(model="policy", input="hi") as events:
        assert plain(events.get_final_response().output) == encoded(answer)["output"]


def test_an_answer_that_was_recorded_is_streamed_again_without_pieces() -> None:
    answer = answer_of(WHOLE)
    events = events_of(streamed(answer, []))
    assert [event["delta"] for event in events if "delta" in event] == ["hm", "Let me look.", '{"city": "Paris"}']
    assert events[-1]["response"] == encoded(answer)


# Failures


@pytest.mark.parametrize(
    ("status", "code"), [(503, "server_error"), (429, "rate_limit_exceeded"), (400, "invalid_prompt")]
)
def test_a_response_that_fails_says_so_twice(status: int, code: str) -> None:
    encoder = RESPONSES.stream(decoded(input="hi")[1], responding())
    encoder.begin(PROMPT_IDS)
    failed, error = events_of(encoder.fail(Refusal(status, "engine_lost", "3 engines failed")))
    response = checked_response(failed["response"])
    assert (failed["type"], response.status, response.output) == ("response.failed", "failed", [])
    assert response.error is not None
    assert (response.error.code, response.error.message) == (code, "3 engines failed")
    assert (error["type"], error["code"], error["message"]) == ("error", "engine_lost", "3 engines failed")


def test_the_sdk_raises_when_a_response_fails() -> None:
    encoder = RESPONSES.stream(decoded(input="hi")[1], responding())
    stream = encoder.begin(PROMPT_IDS) + encoder.fail(Refusal(503, "engine_lost", "3 engines failed"))
    events = sdk_over(stream, "text/event-stream").responses.create(model="policy", input="hi", stream=True)
    assert [next(events).type for _ in range(3)] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    with pytest.raises(openai.APIError, match="3 engines failed"):
        next(events)
