"""Anthropic answers and errors, checked by the SDK's own types; answers sent back are the messages that were given."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import orjson
import pytest
from anthropic.types import ErrorResponse, Message, MessageTokensCount
from anthropic.types.beta import BetaMessage
from hypothesis import given
from hypothesis import strategies as st
from messages_builders import answer, conversation_of, encoded, prompt, sdk

from agentrl.gateway.canonical import canonical, canonical_arguments
from agentrl.gateway.deltas import Content, Delta, Reasoning, ToolCall, message_of
from agentrl.gateway.dialects.count_tokens import encode_count
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.dialects.messages_input import arguments_of, input_json
from agentrl.gateway.refusal import Refusal, invalid

CALL = ToolCall("a1B2c3D4e", "weather", '{"city": "Paris"}')
HELLO = {"role": "user", "content": "hi"}


def message(*deltas: Delta, **how: Any) -> Message:
    return Message.model_validate_json(encoded(answer(deltas, **how)))


# Answers


def test_an_answer_is_thinking_then_text_then_calls() -> None:
    found = message(Reasoning("hm"), Content("let me see"), CALL, num_prompt_ids=9, num_sampled=5, reasoning_tokens=2)
    assert [block.type for block in found.content] == ["thinking", "text", "tool_use"]
    thinking, text, use = found.content
    assert (thinking.thinking, text.text) == ("hm", "let me see")  # type: ignore[union-attr]
    assert (use.id, use.name, use.input) == ("a1B2c3D4e", "weather", {"city": "Paris"})  # type: ignore[union-attr]
    assert (found.id, found.model, found.role) == ("msg_1", "policy", "assistant")
    assert (found.usage.input_tokens, found.usage.output_tokens) == (9, 5)
    assert (found.usage.cache_read_input_tokens, found.usage.cache_creation_input_tokens) == (0, 0)
    assert found.usage.output_tokens_details is not None
    assert found.usage.output_tokens_details.thinking_tokens == 2


def test_a_model_that_said_nothing_has_no_content() -> None:
    found = message()
    assert (found.content, found.stop_reason) == ([], "end_turn")


@pytest.mark.parametrize(
    ("deltas", "how", "expected"),
    [
        ([Content("a")], {}, ("end_turn", None)),
        ([Content("a"), CALL], {}, ("tool_use", None)),
        ([Content("a")], {"stop": "END"}, ("stop_sequence", "END")),
        ([Content("a")], {"finish_reason": "length"}, ("max_tokens", None)),
        ([CALL, Content("<tool_call>")], {"finish_reason": "length"}, ("max_tokens", None)),
        ([Content("a")], {"finish_reason": "abort"}, ("max_tokens", None)),
    ],
)
def test_stop_reasons(deltas: list[Delta], how: dict[str, Any], expected: tuple[str, str | None]) -> None:
    found = message(*deltas, **how)
    assert (found.stop_reason, found.stop_sequence) == expected


def test_a_signature_is_the_same_for_the_same_thinking_and_another_for_other() -> None:
    one, again, other = (message(Reasoning(text)).content[0].signature for text in ("hm", "hm", "ah"))  # type: ignore[union-attr]
    assert one == again != other


def test_a_request_that_allows_context_edits_is_told_that_none_was_applied() -> None:
    body = encoded(answer([Content("a")]), context_management={"edits": [{"type": "clear_tool_uses_20250919"}]})
    found = BetaMessage.model_validate_json(body)
    assert found.context_management is not None
    assert found.context_management.applied_edits == []


def test_counts_are_the_sdks() -> None:
    assert MessageTokensCount.model_validate_json(encode_count(12)).input_tokens == 12


# Arguments that are no JSON object


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "not JSON",
        "[1]",
        "null",
        '{"a": NaN}',
        '{"a": 1e400}',
        '{"a": "\\ud800"}',
        '{"_raw": "x"}',
        '{"a": ' + "[" * 150 + "]" * 150 + "}",
        "[" * 100_000,
        '{"a": ' + "9" * 5000 + "}",
    ],
)
def test_arguments_that_no_object_can_stand_for_travel_as_text(arguments: str) -> None:
    sent = json.loads(input_json(arguments))
    assert sent == {"_raw": arguments}
    assert arguments_of(sent) == arguments


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (' { "a" :\n1 } ', {"a": 1}),
        ('{"_raw": 1}', {"_raw": 1}),
        ('{"_raw": "x", "a": 1}', {"_raw": "x", "a": 1}),
        ('{"a": 123456789012345678901234567890}', {"a": 123456789012345678901234567890}),
        ('{"a": 1, "a": 2}', {"a": 2}),
    ],
)
def test_objects_travel_as_they_are(arguments: str, expected: dict[str, Any]) -> None:
    assert json.loads(input_json(arguments)) == expected


# Echoes

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.just("_raw"), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = (
    st.text() | JSON_VALUES.map(json.dumps) | st.dictionaries(st.text(), JSON_VALUES, max_size=3).map(json.dumps)
)


@given(ARGUMENTS)
def test_arguments_come_back_canonically_equal_for_every_text(arguments: str) -> None:
    sent = json.loads(orjson.dumps(orjson.Fragment(input_json(arguments))))
    assert canonical_arguments(arguments_of(sent)) == canonical_arguments(arguments)


DELTAS = st.lists(
    st.text().map(Reasoning)
    | st.text().map(Content)
    | st.builds(ToolCall, st.text("abc123", min_size=9, max_size=9), st.text(min_size=1), ARGUMENTS),
    max_size=5,
)


@given(DELTAS)
def test_an_answer_that_the_sdk_sends_back_is_canonically_the_message_that_was_given(deltas: list[Delta]) -> None:
    given_out = message_of(deltas)
    sent: list[bytes] = []
    client = sdk(encoded(answer(deltas)), sent)
    first = client.messages.create(model="policy", max_tokens=9, messages=[HELLO])  # type: ignore[list-item]
    echo: Any = [HELLO, {"role": "assistant", "content": first.content}, HELLO]
    client.messages.create(model="policy", max_tokens=9, messages=echo)
    found = conversation_of(sent[1])
    assert canonical(found.messages[1]) == canonical(given_out)


@pytest.mark.parametrize(
    ("written", "echoed"),
    [('{"a": 1.0}', {"a": 1}), ('{"a": [-0.0, 1e3]}', {"a": [0, 1000]}), ('{"a": 1e16}', {"a": 1e16})],
)
def test_a_client_in_javascript_may_write_whole_numbers_without_their_point(written: str, echoed: Any) -> None:
    given_out = message_of([ToolCall("a1B2c3D4e", "weather", written)])
    use = {"type": "tool_use", "id": "a1B2c3D4e", "name": "weather", "input": echoed}
    found = prompt(HELLO, {"role": "assistant", "content": [use]}, HELLO)
    assert canonical(found.messages[1]) == canonical(given_out)


@pytest.mark.parametrize("dump", ["model_dump", "to_dict"])
def test_an_answer_that_was_made_a_dict_can_be_sent_back(dump: str) -> None:
    deltas: list[Delta] = [Reasoning("hm"), Content("let me see"), CALL]
    content = getattr(message(*deltas), dump)()["content"]
    found = prompt(HELLO, {"role": "assistant", "content": content}, HELLO)
    assert canonical(found.messages[1]) == canonical(message_of(deltas))


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "raised"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (409, "conflict_error", anthropic.ConflictError),
        (422, "invalid_request_error", anthropic.UnprocessableEntityError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (502, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
        (504, "timeout_error", anthropic.InternalServerError),
    ],
)
def test_each_status_has_the_apis_type_and_the_sdks_exception(
    status: int, kind: str, raised: type[anthropic.APIStatusError]
) -> None:
    body = MESSAGES.error(Refusal(status, "why_not", "because"))
    with pytest.raises(raised) as caught:
        sdk(body, status=status).messages.create(model="policy", max_tokens=9, messages=[HELLO])  # type: ignore[list-item]
    assert (caught.value.type, caught.value.api_message, caught.value.error_code) == (kind, "because", "why_not")


def test_an_error_validates_as_the_sdks_and_names_its_field() -> None:
    found = ErrorResponse.model_validate_json(MESSAGES.error(invalid("tools[0].type", "nobody knows it")))
    assert found.type == "error"
    assert found.error.message == "tools[0].type: nobody knows it"


def test_a_prompt_that_does_not_fit_is_told_in_the_words_by_which_coding_agents_compact() -> None:
    refusal = Refusal(400, "context_length_exceeded", "the prompt has 70 tokens", param="messages")
    assert orjson.loads(MESSAGES.error(refusal))["error"]["message"] == "prompt is too long: the prompt has 70 tokens"
