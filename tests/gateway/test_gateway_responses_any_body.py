"""Whatever a client sends to the Responses API is answered as the SDK takes it, or refused with a 400."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses_builders import CALL, SAID, THOUGHT, WEATHER_TOOL, answer_of, checked_response, responding, some_text

from agentrl.gateway.deltas import Content
from agentrl.gateway.dialects.responses import RESPONSES
from agentrl.gateway.dialects.responses_request import ResponsesRequest
from agentrl.gateway.refusal import Refusal

ITEMS: list[dict[str, Any]] = [
    THOUGHT,
    SAID,
    CALL,
    {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
]
SETTINGS: dict[str, list[Any]] = {
    "tools": [[], [WEATHER_TOOL]],
    "tool_choice": ["none", "auto", "required", {"type": "function", "name": "weather"}],
    "text": [{}, {"format": {"type": "json_object"}}, {"format": {"type": "text"}, "verbosity": "low"}],
    "reasoning": [{}, {"effort": "none"}, {"effort": "high", "summary": "detailed"}],
    "include": [[], ["message.output_text.logprobs"], ["reasoning.encrypted_content"]],
    "metadata": [{}, {"a": "b"}],
    "parallel_tool_calls": [True, False],
    "temperature": [0.5],
    "top_logprobs": [0, 3],
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | some_text,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(some_text | st.just("type"), values, max_size=3),
    max_leaves=5,
)


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """Valid, but for some field or a part of one that may be anything."""
    items = draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=4))
    body: dict[str, Any] = {"input": [dict(item) for item in items]}
    for name in draw(st.lists(st.sampled_from(sorted(SETTINGS)), unique=True)):
        body[name] = draw(st.sampled_from(SETTINGS[name]))
    match draw(st.sampled_from(["nothing", "a field", "an item", "a field of an item"])):
        case "a field":
            body[draw(st.sampled_from(ResponsesRequest.__struct_fields__))] = draw(json_values)
        case "an item":
            body["input"].append(draw(json_values))
        case "a field of an item":
            item = draw(st.sampled_from(body["input"]))
            item[draw(st.sampled_from([*item, "id", "status"]))] = draw(json_values)
    return body


def answered(body: bytes) -> dict[str, Any] | int:
    """The response, or the status of the refusal."""
    try:
        _, asked = RESPONSES.decode(body)
    except Refusal as refusal:
        return refusal.status
    return dict(json.loads(RESPONSES.encode([answer_of([Content("a")])], asked, responding())))


@given(bodies())
def test_any_body_is_answered_as_the_sdk_takes_it_or_refused(body: dict[str, Any]) -> None:
    response = answered(json.dumps(body).encode())
    if response != 400:
        assert isinstance(response, dict)
        assert checked_response(response).output_text == "a"


@pytest.mark.parametrize("depth", [100, 400, 900, 5_000, 100_000])
@pytest.mark.parametrize(
    "body",
    [
        b'{"input": "q", "tools": [{"type": "function", "name": "f", "parameters": %b}]}',
        b'{"input": "q", "text": {"format": {"type": "json_schema", "name": "n", "schema": %b}}}',
        b'{"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "a", "annotations": [%b]}]}]}',
    ],
)
def test_a_value_that_is_nested_deep_is_answered_or_refused(body: bytes, depth: int) -> None:
    response = answered(body % (b'{"a":' * depth + b"1" + b"}" * depth))
    assert response == 400 or isinstance(response, dict)
