"""What every family's parser promises."""

from __future__ import annotations

import json

import pytest
from parser_builders import BETWEEN, NO_ARGUMENTS, ONE_CALL, added_up, call_with, parsed, parser_of

from agentrl.gateway.deltas import Content, Reasoning, ToolCall
from agentrl.gateway.parsers import FAMILIES
from agentrl.gateway.parsers.base import ParseOptions, new_call_id

CALLING = sorted(ONE_CALL)
THINKING = sorted(set(FAMILIES) - {"gpt_oss"})
UNMARKED_ENDS = ("llama3", "mistral")  # families whose calls have no closing mark

every_calling_family = pytest.mark.parametrize("family", CALLING)
every_thinking_family = pytest.mark.parametrize("family", THINKING)


@every_calling_family
def test_a_call_is_its_name_and_its_arguments(family: str) -> None:
    found = parsed(family, ONE_CALL[family])
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == [("weather", {"city": "Köln"})]
    assert found.content == found.reasoning == ""


@every_calling_family
def test_case_37_a_call_without_arguments_has_an_empty_object(family: str) -> None:
    """Case 37."""
    call = NO_ARGUMENTS[family]
    assert parsed(family, call).calls == [("now", "{}")]
    assert parsed(family, *call).calls == [("now", "{}")], "streamed"


@every_calling_family
def test_case_39_a_tool_that_nobody_offered_is_called_all_the_same(family: str) -> None:
    call = NO_ARGUMENTS[family].replace("now", "rm")
    assert parsed(family, call).calls == [("rm", "{}")]


@every_calling_family
def test_case_40_a_call_that_is_cut_off_anywhere_is_no_call_and_stays_text(family: str) -> None:
    """Case 40."""
    call = ONE_CALL[family]
    whole = len(call) + (family in UNMARKED_ENDS)
    whole -= len("<｜tool▁calls▁end｜>") if family == "deepseek" else 0  # which closes them all, not the call
    for end in range(whole):
        found = parsed(family, call[:end], stopped=False)
        assert found.calls == []
        if family != "gpt_oss" or "<|message|>" in call[:end]:
            assert found.content == call[:end]


@every_calling_family
def test_case_40_what_a_cut_off_argument_spells_is_never_run(family: str) -> None:
    """Case 40."""
    call = call_with(family, f"{NO_ARGUMENTS[family]}\n" * 2 + "[TOOL_CALLS]")
    assert [name for name, _ in parsed(family, call).calls] == ["weather"]
    end_of_argument = call.rindex("[TOOL_CALLS]")
    for end in range(end_of_argument):
        assert parsed(family, call[:end], stopped=False).calls == []


@every_calling_family
def test_an_argument_may_spell_marks_and_quotes(family: str) -> None:
    argument = f'say "{NO_ARGUMENTS[family]}" \\ and {{'
    [(_, arguments)] = parsed(family, call_with(family, argument)).calls
    assert json.loads(arguments) == {"city": argument}


@every_calling_family
def test_several_calls_keep_their_order_and_have_ids_of_their_own(family: str) -> None:
    between = BETWEEN.get(family, "\n")
    parser = parser_of(family)
    deltas = [
        *parser.feed(ONE_CALL[family] + between + NO_ARGUMENTS[family] + between + ONE_CALL[family]),
        *parser.finish(stopped=True),
    ]
    calls = [delta for delta in deltas if isinstance(delta, ToolCall)]
    assert deltas == calls, "the space between is dropped"
    assert [call.name for call in calls] == ["weather", "now", "weather"]
    assert len({call.id for call in calls}) == 3


@pytest.mark.parametrize("family", sorted(set(CALLING) - set(UNMARKED_ENDS)))
def test_a_call_comes_with_the_last_character_of_its_end(family: str) -> None:
    parser = parser_of(family)
    call = ONE_CALL[family].removesuffix("<｜tool▁calls▁end｜>")
    for character in call[:-1]:
        assert parser.feed(character) == []
    [delta] = parser.feed(call[-1])
    assert isinstance(delta, ToolCall)


@pytest.mark.parametrize("family", UNMARKED_ENDS)
def test_a_call_without_a_closing_mark_comes_when_the_next_begins_or_the_model_stops(family: str) -> None:
    parser = parser_of(family)
    assert parser.feed(NO_ARGUMENTS[family]) == []
    [first] = parser.feed(BETWEEN[family] + ONE_CALL[family])
    [second] = parser.finish(stopped=True)
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert (first.name, second.name) == ("now", "weather")


@pytest.mark.parametrize("family", sorted(set(CALLING) - {"llama3", "gpt_oss"}))
def test_space_before_a_call_is_dropped_and_other_text_stays_as_it_was_sampled(family: str) -> None:
    found = parsed(family, f"  Let me\n look. \n\n{ONE_CALL[family]}\n")
    assert found.content == "  Let me\n look."
    assert len(found.calls) == 1


@pytest.mark.parametrize("family", sorted(set(CALLING) - {"llama3", "gpt_oss", "mistral"}))
def test_text_after_a_call_keeps_the_space_before_it(family: str) -> None:
    assert parsed(family, f"one\n{ONE_CALL[family]}\ntwo\n").content == "one\ntwo\n"


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_text_without_marks_comes_at_once_and_as_it_is(family: str) -> None:
    parser = parser_of(family, tools=())
    assert parser.feed("\n one") == [Content("\n one")]
    assert parser.feed(" two") == [Content(" two")]
    assert parser.feed(" \n") == []
    assert parser.finish(stopped=True) == [Content(" \n")]


@every_calling_family
def test_text_that_may_yet_be_a_mark_is_held_until_it_is_none(family: str) -> None:
    mark = {"llama3": "<|python_tag|>", "mistral": "[TOOL_CALLS]", "gpt_oss": "<|channel|>"}.get(family, "<tool_call>")
    mark = "<｜tool▁calls▁begin｜>" if family == "deepseek" else mark
    parser = parser_of(family)
    assert parser.feed("a" + mark[:-1]) == [Content("a")]
    assert parser.feed("!") == [Content(mark[:-1] + "!")]


@every_calling_family
def test_without_tools_a_call_is_text(family: str) -> None:
    assert parsed(family, ONE_CALL[family], tools=()) == (ONE_CALL[family], "", [])


@every_thinking_family
def test_reasoning_comes_as_it_is_sampled_and_its_ends_are_stripped(family: str) -> None:
    parser = parser_of(family)
    assert parser.feed("<think>\n") == []
    assert parser.feed("one ") == [Reasoning("one")]
    assert parser.feed("two\n</th") == [Reasoning(" two")]
    assert parser.feed("ink>\n\nFour. ") == [Content("Four.")]
    assert parser.finish(stopped=True) == [Content(" ")]


@every_thinking_family
@pytest.mark.parametrize("opened_again", ["", "<think>\n", "\n<think>"])
def test_reasoning_that_the_prompt_opened_ends_at_the_mark_alone(family: str, opened_again: str) -> None:
    text = f"{opened_again}one\n</think>\nFour."
    assert parsed(family, text, in_reasoning=True) == ("Four.", "one", [])


@every_thinking_family
def test_reasoning_that_was_cut_off_is_reasoning(family: str) -> None:
    assert parsed(family, "<think>one ", stopped=False) == ("", "one", [])
    assert parsed(family, "one ", stopped=False, in_reasoning=True) == ("", "one", [])


@every_thinking_family
def test_a_think_mark_behind_other_text_is_text(family: str) -> None:
    text = "The mark <think> opens, </think> ends."
    assert parsed(family, text) == (text, "", [])


@pytest.mark.parametrize("family", sorted(set(CALLING) - {"gpt_oss"}))
def test_a_call_in_the_reasoning_is_reasoning_and_one_after_it_is_a_call(family: str) -> None:
    thought = f"I could write {ONE_CALL[family]} now"
    found = parsed(family, f"<think>{thought}</think>\n\n{NO_ARGUMENTS[family]}")
    assert found == ("", thought, [("now", "{}")])


@every_thinking_family
@pytest.mark.parametrize(
    ("text", "in_reasoning", "end"),
    [
        ("Four.", False, 0),
        ("\n<think>", False, 8),
        ("<think>a</think>b", False, 16),
        ("<think>a</thi", False, 13),
        ("a", True, 1),
        ("a</think>bc", True, 9),
    ],
)
def test_the_end_of_the_reasoning_is_counted_with_its_marks(
    family: str, text: str, in_reasoning: bool, end: int
) -> None:
    parser = parser_of(family, in_reasoning=in_reasoning)
    parser.feed(text)
    assert parser.reasoning_end == end
    parser.finish(stopped=True)
    assert parser.reasoning_end == end


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_an_empty_answer_says_nothing(family: str) -> None:
    parser = parser_of(family)
    assert parser.feed("") == []
    assert parser.finish(stopped=True) == []


def test_text_after_the_end_is_refused() -> None:
    parser = parser_of("plain")
    parser.finish(stopped=True)
    with pytest.raises(ValueError, match="make a new parser for each answer"):
        parser.feed("more")


def test_call_ids_have_the_nine_letters_and_digits_that_every_template_takes() -> None:
    made = {new_call_id() for _ in range(50)}
    assert all(len(one) == 9 and one.isalnum() and one.isascii() for one in made)
    assert len(made) == 50
    parser = FAMILIES["hermes"].parser(ParseOptions(tools=[{"type": "function", "function": {"name": "now"}}]))
    [delta] = parser.feed(NO_ARGUMENTS["hermes"])
    assert isinstance(delta, ToolCall)
    assert len(delta.id) == 9
    assert added_up([delta]).calls == [("now", "{}")]
