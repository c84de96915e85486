"""Requests of the Responses API: what they become in the core, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from responses_builders import (
    CALL,
    SAID,
    THOUGHT,
    WEATHER_TOOL,
    answer_of,
    answers,
    conversation,
    decoded,
    encoded,
    some_text,
)

from agentrl.gateway.canonical import canonical
from agentrl.gateway.deltas import Answer, Content, Delta
from agentrl.gateway.request import NamedTool
from agentrl.types import Constraint


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return conversation(input=list(items)).messages


def test_a_text_is_a_user_message() -> None:
    assert conversation(input="hi").messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "ab"},
        {"type": "message", "role": "user", "content": "ab"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "message", "role": "user", "content": "ab", "id": "msg_1", "status": "completed"},
        {"type": None, "role": "user", "content": "ab"},
    ],
)
def test_a_message_may_be_written_in_every_form_of_the_api(item: dict[str, Any]) -> None:
    assert messages(item) == [{"role": "user", "content": "ab"}]


def test_instructions_stay_apart_from_the_messages_and_the_previous_response_is_named() -> None:
    found = conversation(input="hi", instructions="Be brief.", previous_response_id="resp_1")
    assert (found.instructions, found.after) == ("Be brief.", "resp_1")
    assert found.messages == [{"role": "user", "content": "hi"}]


def test_system_and_developer_messages_stand_where_they_were() -> None:
    roles = [{"role": role, "content": "x"} for role in ("system", "user", "developer")]
    assert messages(*roles) == roles


def test_reasoning_text_and_parallel_calls_are_one_assistant_message() -> None:
    other = {**CALL, "call_id": "c2", "id": "fc_2", "status": "completed"}
    function = {"name": "weather", "arguments": "{}"}
    assert messages(THOUGHT, SAID, CALL, other) == [
        {
            "role": "assistant",
            "content": "yes",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": function},
                {"id": "c2", "type": "function", "function": function},
            ],
        }
    ]


@pytest.mark.parametrize(
    "output", ["rain", [{"type": "input_text", "text": "ra"}, {"type": "input_text", "text": "in"}]]
)
def test_the_output_of_a_call_is_a_tool_message(output: Any) -> None:
    found = messages(CALL, {"type": "function_call_output", "call_id": "c1", "output": output})
    assert found[1] == {"role": "tool", "tool_call_id": "c1", "content": "rain"}


@pytest.mark.parametrize(("first", "second"), [(SAID, SAID), (CALL, SAID), (CALL, THOUGHT), (SAID, THOUGHT)])
def test_items_without_ids_that_no_answer_would_give_in_this_order_are_two_messages(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert len(messages(first, second)) == 2


def test_ids_of_this_gateway_tell_one_answer_from_the_next() -> None:
    first, second = {**SAID, "id": "msg_resp_1"}, {**CALL, "id": "fc_0_resp_2"}
    assert len(messages(first, second)) == 2
    assert len(messages(first, {**CALL, "id": "fc_0_resp_1"})) == 1


def test_ids_of_another_api_tell_nothing() -> None:
    assert len(messages({**SAID, "id": "msg_ab12"}, {**CALL, "id": "fc_cd34"})) == 1


@pytest.mark.parametrize(
    "reasoning",
    [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": None, "encrypted_content": "gAAAA"},
    ],
)
def test_reasoning_that_nobody_can_read_is_left_out(reasoning: dict[str, Any]) -> None:
    assert messages(reasoning, SAID) == [{"role": "assistant", "content": "yes"}]


def test_a_summary_is_the_reasoning_where_there_is_nothing_else_of_it() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "thought"}]}
    assert messages(summary, SAID)[0]["reasoning_content"] == "thought"


@given(answers())
def test_echoed_output_is_the_message_that_was_recorded(answered: tuple[Answer, list[Delta]]) -> None:
    answer, _ = answered
    output = encoded(answer)["output"]
    [message] = messages(*output)
    assert canonical(message) == canonical(answer.call.message)


@given(answers())
def test_echoed_output_without_its_ids_is_the_same_message(answered: tuple[Answer, list[Delta]]) -> None:
    answer, _ = answered
    output = [{key: value for key, value in item.items() if key != "id"} for item in encoded(answer)["output"]]
    [message] = messages(*output)
    assert canonical(message) == canonical(answer.call.message)


@given(st.lists(st.tuples(answers(), some_text), min_size=1, max_size=3))
def test_an_echoed_conversation_is_the_one_that_was_recorded(
    turns: list[tuple[tuple[Answer, list[Delta]], str]],
) -> None:
    items: list[dict[str, Any]] = []
    recorded: list[dict[str, Any]] = []
    for (answer, _), text in turns:
        items += [{"role": "user", "content": text}, *encoded(answer)["output"]]
        recorded += [{"role": "user", "content": text}, answer.call.message]
    assert [canonical(message) for message in messages(*items)] == [canonical(message) for message in recorded]


def test_two_answers_in_a_row_stay_two_messages() -> None:
    first = encoded(answer_of([Content("a")], response_id="resp_1"))["output"]
    second = encoded(answer_of([Content("b")], response_id="resp_2"))["output"]
    assert [message["content"] for message in messages(*first, *second)] == ["a", "b"]


# Tools


def test_tools_take_chat_completions_form_without_what_is_not_for_the_model() -> None:
    tools = conversation(input="q", tools=[WEATHER_TOOL, {"type": "function", "name": "now", "parameters": None}]).tools
    weather = {key: WEATHER_TOOL[key] for key in ("name", "description", "parameters")}
    assert tools == [{"type": "function", "function": weather}, {"type": "function", "function": {"name": "now"}}]


@pytest.mark.parametrize(
    ("given_choice", "choice"),
    [
        (None, "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "weather"}, NamedTool("weather")),
    ],
)
def test_tool_choice_is_passed_on(given_choice: Any, choice: Any) -> None:
    assert conversation(input="q", tools=[WEATHER_TOOL], tool_choice=given_choice).tool_choice == choice


@pytest.mark.parametrize(("sent", "parallel"), [(None, True), (True, True), (False, False)])
def test_parallel_tool_calls_are_allowed_unless_refused(sent: bool | None, parallel: bool) -> None:
    assert conversation(input="q", parallel_tool_calls=sent).parallel_tool_calls is parallel


# Sampling


def test_sampling_fields_take_the_cores_names() -> None:
    turn, _ = decoded(input="q", temperature=0.5, top_p=0.9, max_output_tokens=7, stream=True)
    assert turn.stream
    assert {key: value for key, value in turn.sampling.items() if value is not None} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 7,
    }


def test_alternatives_are_asked_for_only_where_they_are_shown() -> None:
    include = ["message.output_text.logprobs"]
    assert decoded(input="q", top_logprobs=3, include=include)[0].sampling["top_logprobs"] == 3
    assert decoded(input="q", top_logprobs=3)[0].sampling["top_logprobs"] is None


@pytest.mark.parametrize(
    ("form", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint(kind="json_object", value=True)),
        (
            {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True},
            Constraint(kind="json", value={"type": "object"}),
        ),
    ],
)
def test_a_text_format_constrains_the_answer(form: dict[str, Any], constraint: Constraint | None) -> None:
    turn, _ = decoded(input="q", text={"format": form, "verbosity": "low"})
    assert turn.sampling["constraint"] == constraint


@pytest.mark.parametrize(
    ("effort", "variables"),
    [(None, {}), ("none", {"enable_thinking": False}), ("high", {"reasoning_effort": "high"})],
)
def test_the_effort_is_a_variable_of_the_template(effort: str | None, variables: dict[str, Any]) -> None:
    assert conversation(input="q", reasoning={"effort": effort, "summary": "auto"}).template_kwargs == variables


def test_what_cannot_change_an_answer_is_taken() -> None:
    ignored: dict[str, Any] = {
        "model": "gpt-5",
        "metadata": {"a": "b"},
        "user": "u",
        "store": False,
        "service_tier": "flex",
        "safety_identifier": "s",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "include": ["reasoning.encrypted_content"],
        "truncation": "disabled",
        "background": False,
        "max_tool_calls": 3,
        "stream_options": {"include_obfuscation": False},
        "conversation": None,
        "prompt": None,
    }
    assert conversation(input="q", **ignored) == conversation(input="q")
