"""Anthropic requests in the terms of the core: turns, tools, choices, sampling, and fields that are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from messages_builders import WEATHER, assistant, body, prompt, result, text, use, user

from agentrl.gateway.dialects.messages import decode
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.request import NamedTool
from agentrl.gateway.sampling import effective
from agentrl.types import Constraint


def called(call_id: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": "weather", "arguments": arguments}}


# Turns


def test_results_of_a_turn_become_tool_messages_and_its_text_a_user_message_after_them() -> None:
    found = prompt(
        user("weather?"),
        assistant(use("a", city="Paris"), use("b", city="Rome")),
        user(result("a"), result("b", [text("sun"), text("30 degrees")]), text("well?")),
    )
    assert found.messages == [
        {"role": "user", "content": "weather?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [called("a", '{"city": "Paris"}'), called("b", '{"city": "Rome"}')],
        },
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "tool", "tool_call_id": "b", "content": "sun\n30 degrees"},
        {"role": "user", "content": "well?"},
    ]


def test_a_result_without_content_is_empty_and_one_of_an_error_says_so() -> None:
    absent = {"type": "tool_result", "tool_use_id": "a"}
    found = prompt(user(absent, result("b", "no such city", is_error=True), result("c", is_error=False)))
    assert [message["content"] for message in found.messages] == ["", "Error: no such city", "rain"]


def test_texts_of_a_user_are_lines_and_texts_of_the_assistant_are_one_text() -> None:
    found = prompt(user(text("one"), text("two")), assistant(text("thr"), text("ee")), user("four"))
    assert [message["content"] for message in found.messages] == ["one\ntwo", "three", "four"]


def test_consecutive_messages_of_one_side_are_one_turn() -> None:
    found = prompt(user("one"), user("two"), assistant(text("let me see")), assistant(use("a")), user(result("a")))
    assert found.messages == [
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "let me see", "tool_calls": [called("a", "{}")]},
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
    ]


def test_thinking_is_the_reasoning_of_its_turn_and_redacted_thinking_is_left_out() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "of somebody else"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    found = prompt(user("q"), assistant(thinking, redacted, text("a")), user("r"))
    assert found.messages[1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}


@pytest.mark.parametrize("system", ["be kind", [text("be", cache_control={"type": "ephemeral"}), text("kind")]])
def test_the_system_prompt_comes_first_and_is_inherited(system: Any) -> None:
    found = prompt(user("q"), system=system)
    assert found.messages[0] == {"role": "system", "content": "be kind" if isinstance(system, str) else "be\nkind"}
    assert found.instructions is None


def test_system_messages_at_the_start_join_the_system_prompt() -> None:
    found = prompt({"role": "system", "content": "two"}, user("q"), system="one")
    assert found.messages == [{"role": "system", "content": "one\ntwo"}, {"role": "user", "content": "q"}]


def test_a_system_message_on_the_way_is_marked_text_of_the_user_turn_so_that_the_history_before_it_stays() -> None:
    note = {"role": "system", "content": [text("90 tokens left")]}
    found = prompt(user("q"), assistant(use("a")), user(result("a")), note)
    assert found.messages[2:] == [
        {"role": "tool", "tool_call_id": "a", "content": "rain"},
        {"role": "user", "content": "<system-reminder>\n90 tokens left\n</system-reminder>"},
    ]


@pytest.mark.parametrize("count", [1, 2])
def test_accounting_headers_in_the_system_prompt_never_reach_the_model(count: int) -> None:
    head = "".join(f"x-anthropic-billing-header: cc_version={i}; cch=abc{i};\n" for i in range(count))
    as_blocks = prompt(user("q"), system=[text(head.strip()), text("You are an agent.\nx-anthropic-kind: quoted")])
    as_string = prompt(user("q"), system=head + "You are an agent.\nx-anthropic-kind: quoted")
    assert as_blocks.messages[0]["content"] == "You are an agent.\nx-anthropic-kind: quoted"
    assert as_string == as_blocks


def test_a_turn_without_content_is_an_empty_message() -> None:
    found = prompt(user(text("")), {"role": "assistant", "content": []}, {"role": "user", "content": []})
    assert [message["content"] for message in found.messages] == ["", "", ""]


# Tools


def test_tools_take_chat_completions_form_and_keep_their_examples_in_the_schema() -> None:
    full = {
        **WEATHER,
        "type": "custom",
        "strict": True,
        "eager_input_streaming": True,
        "cache_control": {"type": "ephemeral", "ttl": "1h"},
        "defer_loading": False,
        "allowed_callers": ["direct"],
        "input_examples": [{"city": "Paris"}],
    }
    found = prompt(user("q"), tools=[{"name": "now", "input_schema": {"type": "object"}}, full])
    parameters = {"type": "object", "examples": [{"city": "Paris"}]}
    assert found.tools == [
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": parameters}},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "weather"}, NamedTool("weather")),
    ],
)
@pytest.mark.parametrize("one", [True, False, None])
def test_tool_choice_and_whether_several_calls_may_be_made(choice: dict[str, Any], expected: Any, one: Any) -> None:
    asked = choice if one is None else {**choice, "disable_parallel_tool_use": one}
    found = prompt(user("q"), tools=[WEATHER], tool_choice=asked)
    assert (found.tool_choice, found.parallel_tool_calls) == (expected, not one)


# Sampling and the template


def test_sampling_fields_are_those_of_the_core() -> None:
    turn, _ = decode(body(max_tokens=9, temperature=0.5, top_p=0.9, top_k=3, stop_sequences=["a", "b"], stream=True))
    found = effective(turn.sampling, {}, "eval")
    assert (found.max_tokens, found.temperature, found.top_p, found.top_k) == (9, 0.5, 0.9, 3)
    assert found.stop == ("a", "b")
    assert turn.stream
    assert turn.num_bytes > 0


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_an_output_schema_is_a_constraint_of_the_sample(field: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    turn, _ = decode(body(**{field: form if field == "output_format" else {"format": form}}))
    found = effective(turn.sampling, {}, "train")
    assert found.constraint == Constraint(kind="json", value={"type": "object"})


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, {}),
        ({"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"output_config": {"effort": "max", "format": None}}, {"reasoning_effort": "high"}),
    ],
)
def test_thinking_and_effort_are_variables_of_the_template(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert prompt(user("q"), **fields).template_kwargs == expected


def test_fields_that_cannot_change_an_answer_are_taken_and_change_nothing() -> None:
    marked = user(text("hi", cache_control={"type": "ephemeral"}, citations=None))
    found = prompt(
        marked,
        metadata={"user_id": "me"},
        service_tier="auto",
        speed="fast",
        inference_geo="us",
        diagnostics={"previous_message_id": None},
        context_hint={"enabled": True},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        cache_control={"type": "ephemeral"},
        container=None,
        mcp_servers=[],
        user_profile_id="u",
        workspace_id="w",
        betas=["interleaved-thinking-2025-05-14"],
        fallbacks=[{"model": "other"}],
    )
    assert found == prompt(user("hi"))


# Refusals

IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [user(text("a"), IMAGE)]}, "messages[0].content[1].type"),
        ({"messages": [user({"type": "document", "source": {}})]}, "messages[0].content[0].type"),
        ({"messages": [user(result("a", [IMAGE]))]}, "messages[0].content[0].content[0].type"),
        ({"messages": [user(result("a", [{"type": "tool_reference"}]))]}, "messages[0].content[0].content[0].type"),
        ({"messages": [user("a"), assistant(text("prefilled"))]}, "messages[1]"),
        (
            {"messages": [user("a"), assistant({**use("a"), "input": "no object"}), user("b")]},
            "messages[1].content[0].input",
        ),
        ({"messages": [user("a"), assistant({"type": "server_tool_use"})]}, "messages[1].content[0].type"),
        (
            {"messages": [assistant({**use("a"), "caller": {"type": "code_execution_20250825", "tool_id": "x"}})]},
            "messages[0].content[0].caller.type",
        ),
        ({"messages": [{"role": "user", "content": "a", "name": "me"}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"stop_sequences": ["a", ""]}, "stop_sequences[1]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{**WEATHER, "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{**WEATHER, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "now"}}, "tool_choice.name"),
        ({"tools": [WEATHER], "tool_choice": {"type": "all"}}, "tool_choice.type"),
        ({"container": "c1"}, "container"),
        ({"mcp_servers": [{"type": "url", "url": "u", "name": "n"}]}, "mcp_servers"),
        ({"compaction": {"type": "auto"}}, "compaction"),
        ({"thread": {"id": "t"}}, "thread"),
        ({"context_management": {"edits": [{"type": "compact_20260112"}]}}, "context_management.edits[0].type"),
        ({"output_config": {"task_budget": {"type": "tokens", "total": 5}}}, "output_config.task_budget"),
        ({"output_config": {"effort": "heroic"}}, "output_config.effort"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
    ],
)
def test_what_is_not_supported_is_refused_by_the_path_of_its_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(Refusal) as refused:
        decode(body(**fields))
    assert (refused.value.status, refused.value.param) == (400, named)


def test_max_tokens_has_to_be_there() -> None:
    with pytest.raises(Refusal, match="max_tokens"):
        decode(b'{"model": "policy", "messages": [{"role": "user", "content": "hi"}]}')


def test_an_input_that_is_nested_too_deep_is_refused_and_never_a_failure_of_the_gateway() -> None:
    refused = 0
    for depth in range(1, 1100):
        called = f'{{"type": "tool_use", "id": "a", "name": "b", "input": {{"a": {"[" * depth + "]" * depth}}}}}'
        messages = f'[{{"role": "assistant", "content": [{called}]}}, {{"role": "user", "content": "q"}}]'
        try:
            decode(f'{{"max_tokens": 1, "messages": {messages}}}'.encode())
        except Refusal:
            refused += 1
    assert refused > 0
