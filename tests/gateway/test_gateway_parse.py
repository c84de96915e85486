"""Sampled text → assistant message."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.parse import assistant_message, hermes_calls, new_call_id, trim_at_stop


def calls_of(text: str) -> list[tuple[str, str]]:
    message = assistant_message(text, tools=True)
    return [(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", [])]


def test_a_call_is_parsed_and_the_text_around_it_is_the_content() -> None:
    text = 'let me see\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    message = assistant_message(text, tools=True, new_id=lambda: "id0000000")
    assert message == {
        "role": "assistant",
        "content": "let me see",
        "tool_calls": [
            {"id": "id0000000", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
        ],
    }


def test_case_37_empty_arguments_stay_an_empty_object() -> None:
    assert calls_of('<tool_call>{"name":"now","arguments":{}}</tool_call>') == [("now", "{}")]


def test_several_calls_keep_their_order_and_a_closing_tag_may_stand_inside_a_string() -> None:
    text = (
        '<tool_call>{"name":"say","arguments":{"text":"</tool_call> and <tool_call>"}}</tool_call>\n'
        '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    )
    assert calls_of(text) == [("say", '{"text":"</tool_call> and <tool_call>"}'), ("now", "{}")]


@pytest.mark.parametrize("arguments", ["[1]", "null", '"x"', "3", '"{\\"a\\": 1}"'])
def test_arguments_that_are_no_object_are_passed_on_as_written(arguments: str) -> None:
    assert calls_of(f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>') == [("f", arguments)]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a":}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": }</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "<tool_call>hello</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}',  # cut after the JSON (case 40)
        '<tool_call>{"name": "f", "arguments": {"a"',
        "</tool_call><tool_call>",
    ],
)
def test_what_is_no_whole_call_is_content_and_none_of_it_is_lost(text: str) -> None:
    assert assistant_message(text, tools=True) == {"role": "assistant", "content": text}


def test_a_cut_call_after_a_whole_one_is_content_beside_it() -> None:
    whole = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    calls, rest = hermes_calls(whole + '<tool_call>{"name":"rm')
    assert [call.name for call in calls] == ["now"]
    assert rest == '<tool_call>{"name":"rm'


def test_without_tools_nothing_is_parsed() -> None:
    text = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    assert assistant_message(text, tools=False) == {"role": "assistant", "content": text}


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name":"f","arguments":{}}', '"', "{", " ", "x"])))
def test_any_mixture_of_pieces_parses_into_calls_and_the_rest(pieces: list[str]) -> None:
    text = "".join(pieces)
    calls, rest = hermes_calls(text)
    assert all(json.loads(bytes(call.arguments)) == {} for call in calls)
    assert len(text) - len(rest) >= len(calls) * len('<tool_call>{"name":"f","arguments":{}}</tool_call>')


def test_the_text_is_cut_at_the_stop_string_that_ended_it() -> None:
    assert trim_at_stop("<answer>4</answer>", "</answer>") == "<answer>4"
    assert trim_at_stop("<answer>4</answer>.", "</answer>") == "<answer>4"
    assert trim_at_stop("4", None) == "4"
    assert trim_at_stop("4", 151645) == "4"


def test_call_ids_have_the_nine_letters_and_digits_that_every_template_takes() -> None:
    assert all(len(made) == 9 and made.isalnum() and made.isascii() for made in (new_call_id() for _ in range(50)))


def test_only_what_can_be_an_object_is_given_to_the_json_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error message counts the lines before it, so a text of n bare tags would take n² steps."""

    class Refusing:
        def raw_decode(self, text: str, start: int) -> None:
            raise AssertionError(f"asked to parse {text[start : start + 20]!r}")

    monkeypatch.setattr("agentrl.gateway.parse._json", Refusing())
    text = "<tool_call>" * 1000 + "<tool_call> [1]</tool_call><tool_call>null</tool_call>"
    assert hermes_calls(text) == ([], text)
