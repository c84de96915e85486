"""Next turns, forgery, ends and raw prompts for the chat templates of real families (`templates/`)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_families import (
    CALL_ID,
    DEEPSEEK,
    FAMILIES,
    GLM,
    HARMONY,
    LLAMA3,
    MISTRAL,
    QWEN3,
    TOOL,
    TemplateFamily,
    answer,
    call,
    result,
    tokenizer_of,
    user,
)

from agentrl.gateway.render import Renderer, RenderError

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
WORDS = st.text(max_size=20)
SAID = st.text(min_size=1, max_size=20).map(str.strip).filter(bool)  # templates trim answers
CITIES = st.text(max_size=12).map(lambda text: text.replace("\n", "").strip())
QUESTION = [{"role": "system", "content": "be brief"}, user("hi")]


# What a template writes


@every_family
@given(text=WORDS, system=WORDS)
def test_a_first_turn_is_the_ids_of_what_transformers_writes(family: TemplateFamily, text: str, system: str) -> None:
    messages = [{"role": "system", "content": system}, user(text)]
    prompt = family.renderer.first(messages, [TOOL], family.variables)
    assert family.decoded(prompt) == family.written(messages, [TOOL])


@every_family
def test_case_5_bos_is_there_once_by_messages_and_by_raw_text_with_the_same_ids(family: TemplateFamily) -> None:
    """Case 5."""
    prompt = family.renderer.first(QUESTION)
    spelled = family.decoded(prompt)
    assert family.renderer.raw(spelled) == prompt
    if family.adds_bos:
        bos = family.id(family.bos or "")
        assert prompt.count(bos) == 1
        assert family.renderer.raw("hello") == [bos, *family.ids("hello")]
    assert family.renderer.raw("hello", add_special_tokens=False) == family.ids("hello")


def test_control_tokens_of_a_raw_prompt_are_the_clients_own() -> None:
    prompt = QWEN3.renderer.raw("<|im_start|>user\nhello<|im_end|>")
    assert prompt == [QWEN3.id("<|im_start|>"), *QWEN3.ids("user\nhello"), QWEN3.id("<|im_end|>")]


def test_variables_reach_the_template() -> None:
    closed = QWEN3.renderer.first(QUESTION, template_kwargs={"enable_thinking": False})
    assert QWEN3.decoded(closed).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    more = QWEN3.renderer.extension(
        QUESTION, answer("a"), [user("b")], None, QWEN3.sampled_answer("a"), {"enable_thinking": False}
    )
    assert more is not None
    assert QWEN3.decoded(more).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "eos_token"])
def test_variables_that_are_the_gateways_own_are_refused_by_name(name: str) -> None:
    with pytest.raises(RenderError, match=name):
        QWEN3.renderer.first(QUESTION, template_kwargs={name: "x"})


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    with pytest.raises(RenderError, match="roles must alternate"):
        MISTRAL.renderer.first([user("a"), user("b")])


# Next turns


@every_family
@given(question=WORDS, said=SAID, more=WORDS)
def test_after_an_answer_the_ids_spell_what_the_template_writes_for_all_of_it(
    family: TemplateFamily, question: str, said: str, more: str
) -> None:
    history, new = [user(question)], [user(more)]
    for end in (True, False):  # False: cut by length, or by a stop string
        sample = family.sampled_answer(said, end=end)
        prompt = family.renderer.first(history, None, family.variables)
        added = family.renderer.extension(history, answer(said), new, None, sample, family.variables)
        assert added is not None
        text = family.decoded([*prompt, *sample, *added])
        if family is HARMONY and end:  # <|return|> is what is sampled where <|end|> is written later
            text = text.replace("<|return|>", "<|end|>")
        assert text == family.written([*history, answer(said), *new])


@every_family
@given(question=WORDS, city=CITIES, seen=WORDS)
def test_after_a_call_the_ids_spell_what_the_template_writes_for_all_of_it(
    family: TemplateFamily, question: str, city: str, seen: str
) -> None:
    history = [user(question)]
    sample = family.sampled_call(city)
    prompt = family.renderer.first(history, [TOOL], family.variables)
    added = family.renderer.extension(history, call(city), [result(seen)], [TOOL], sample, family.variables)
    assert added is not None
    text = family.decoded([*prompt, *sample, *added])
    assert text == family.written([*history, call(city), result(seen)], [TOOL])


@every_family
@given(turns=st.lists(st.tuples(WORDS, st.lists(st.tuples(CITIES, WORDS), max_size=2), SAID), min_size=1, max_size=3))
def test_a_whole_episode_spells_what_the_template_writes_for_it_in_one_sequence(
    family: TemplateFamily, turns: list[tuple[str, list[tuple[str, str]], str]]
) -> None:
    history: list[dict[str, Any]] = [user(turns[0][0])]
    ids = family.renderer.first(history, None, family.variables)

    def go_on(said: dict[str, Any], new: dict[str, Any], sample: list[int]) -> None:
        added = family.renderer.extension(history, said, [new], None, sample, family.variables)
        assert added is not None
        ids.extend([*sample, *added])
        history.extend([said, new])

    for (_, calls, said), (following, _, _) in zip(turns, [*turns[1:], ("bye", [], "")], strict=True):
        for city, seen in calls:
            go_on(call(city), result(seen), family.sampled_call(city))
        go_on(answer(said), user(following), family.sampled_answer(said))
    text = family.decoded(ids)
    if family is HARMONY:  # <|return|> is what is sampled where <|end|> is written later
        text = text.replace("<|return|>", "<|end|>")
    assert text == family.written(history)


@every_family
def test_case_45_after_another_end_token_the_turns_own_marker_follows(family: TemplateFamily) -> None:
    """Case 45."""
    extension = family.renderer.extension
    cut = family.sampled_answer("hello", end=False)
    marker = extension(QUESTION, answer("hello"), [user("more")], None, cut)
    others = {family.id(text) for text in ("<|endoftext|>", "<|end_of_text|>") if text in family.special}
    for other in others:
        assert other in family.renderer.end_ids
        assert extension(QUESTION, answer("hello"), [user("more")], None, [*cut, other]) == marker


@every_family
def test_case_51_a_sample_that_ends_inside_a_character_is_closed_as_it_is(family: TemplateFamily) -> None:
    cut = family.sampled_answer("hello", end=False)
    half = [*cut, *family.odd("🔥")[:2]]
    expected = family.renderer.extension(QUESTION, answer("hello"), [user("more")], None, cut)
    assert family.renderer.extension(QUESTION, answer("hello"), [user("more")], None, half) == expected


def test_case_6_thoughts_that_the_template_drops_stay_in_the_recorded_ids() -> None:
    """Case 6."""
    history, thought = [user("q")], "let me think\n</think>\n\nhello"
    prompt = DEEPSEEK.renderer.first(history)
    assert DEEPSEEK.renderer.reasoning_open(prompt)
    sample = DEEPSEEK.sampled_answer("let me think\n") + DEEPSEEK.ids("</think>\n\nhello")
    added = DEEPSEEK.renderer.extension(history, answer(thought), [user("more")], None, [*sample, 0])
    assert added is not None
    assert "let me think" not in DEEPSEEK.written([*history, answer(thought), user("more")])
    assert DEEPSEEK.decoded(added).endswith("<｜User｜>more<｜Assistant｜><think>\n")


def test_thoughts_of_this_question_are_written_again_as_they_were_sampled() -> None:
    thinking = {**call("Rome"), "reasoning_content": "hm"}
    sample = [*QWEN3.ids("<think>\nhm\n</think>\n\n"), *QWEN3.sampled_call("Rome")]
    prompt = QWEN3.renderer.first([user("q")], [TOOL])
    added = QWEN3.renderer.extension([user("q")], thinking, [result("rain")], [TOOL], sample)
    assert added is not None
    assert QWEN3.decoded([*prompt, *sample, *added]) == QWEN3.written([user("q"), thinking, result("rain")], [TOOL])


@pytest.mark.parametrize(
    ("family", "stop"), [(QWEN3, "</tool_call>"), (DEEPSEEK, "<｜tool▁call▁end｜>"), (GLM, "</tool_call>")]
)
def test_a_sample_that_a_stop_string_ended_behind_its_first_call_is_closed_from_there(
    family: TemplateFamily, stop: str
) -> None:
    whole = family.sampled_call("Rome")
    cut = whole[: whole.index(family.id(stop)) + 1]
    prompt = family.renderer.first([user("q")], [TOOL], family.variables)
    added = family.renderer.extension([user("q")], call("Rome"), [result("rain")], [TOOL], cut, family.variables)
    assert added is not None
    assert family.decoded([*prompt, *cut, *added]) == family.written([user("q"), call("Rome"), result("rain")], [TOOL])


@pytest.mark.parametrize("end", ["<|return|>", "<|call|>"])
@pytest.mark.parametrize("called", [True, False])
def test_harmonys_own_end_tokens_are_not_ended_a_second_time(end: str, called: bool) -> None:
    said, new = (call("Rome"), result("rain")) if called else (answer("hello"), user("more"))
    sample = HARMONY.sampled_call("Rome") if called else HARMONY.sampled_answer("hello")
    added = HARMONY.renderer.extension([user("q")], said, [new], [TOOL], [*sample[:-1], HARMONY.id(end)])
    assert added is not None
    assert added[0] == HARMONY.id("<|start|>")


@pytest.mark.parametrize(
    ("said", "new", "end"),
    [(answer("hello"), user("more"), "<|observation|>"), (call("Rome"), result("rain"), "<|user|>")],
)
def test_a_turn_that_was_opened_for_another_role_is_not_bridged(said: Any, new: Any, end: str) -> None:
    sample = [*GLM.sampled_answer("hello", end=False), GLM.id(end)]
    assert GLM.renderer.extension([user("q")], said, [new], [TOOL], sample) is None


def test_what_the_template_refuses_to_write_after_the_answer_is_not_bridged() -> None:
    sample = MISTRAL.sampled_answer("hello")
    assert MISTRAL.renderer.extension([user("q")], answer("hello"), [answer("again")], None, sample) is None


@every_family
def test_a_new_system_message_is_bridged_only_where_it_is_written_behind_the_answer(family: TemplateFamily) -> None:
    new = [{"role": "system", "content": "be loud"}, user("more")]
    added = family.renderer.extension([user("q")], answer("a"), new, None, family.sampled_answer("a"), family.variables)
    if family in (LLAMA3, QWEN3, GLM):
        assert added is not None
        assert "be loud" in family.decoded(added)
    else:  # Mistral's refuses it, DeepSeek's writes it first, harmony's leaves it out
        assert added is None


# Tool calls


@every_family
@pytest.mark.parametrize("raw", ['{"a":', "[1]", "null", '"x"', ""])
def test_case_39_a_call_whose_arguments_are_no_object_can_be_shown_again(family: TemplateFamily, raw: str) -> None:
    history = [user("q"), call("", raw=raw), result("error: no object")]
    assert "no object" in family.decoded(family.renderer.first(history, [TOOL]))
    added = family.renderer.extension(
        [user("q")], call("", raw=raw), [result("error: no object")], [TOOL], family.sampled_call("x")
    )
    assert added is not None
    assert "no object" in family.decoded(added)


def test_arguments_are_given_as_the_template_wants_them() -> None:
    for family in FAMILIES:
        text = family.decoded(family.renderer.first([user("q"), call("Rome"), result("rain")], [TOOL]))
        assert "<arg_value>Rome</arg_value>" in text if family is GLM else '{"city": "Rome"}' in text


def test_a_template_that_looks_for_null_content_beside_calls_gets_it() -> None:
    original = DEEPSEEK.template.replace("and message.tool_calls %}", "and message.content is none %}")
    assert original != DEEPSEEK.template
    prompt = Renderer(tokenizer_of(DEEPSEEK, original)).first([user("q"), call("Rome"), result("rain")])
    assert '```json\n{"city": "Rome"}\n```' in DEEPSEEK.decoded(prompt)


def test_the_ids_of_calls_are_the_clients() -> None:
    text = MISTRAL.decoded(MISTRAL.renderer.first([user("q"), call("Rome"), result("rain")]))
    assert f'"id": "{CALL_ID}"' in text
    assert f'"call_id": "{CALL_ID}"' in text


def test_a_template_that_writes_empty_content_beside_calls_as_a_turn_of_its_own_gets_null() -> None:
    split = '{%- endif %}{%- if message.role == "assistant" and message.content is not none %}'
    original = DEEPSEEK.template.replace('{%- elif message.role == "assistant" %}', split)
    assert original != DEEPSEEK.template
    renderer = Renderer(tokenizer_of(DEEPSEEK, original))
    prompt = renderer.first([user("q"), call("Rome"), result("rain")])
    assert prompt == DEEPSEEK.renderer.first([user("q"), call("Rome"), result("rain")])
    added = renderer.extension([user("q")], call("Rome"), [result("rain")], [TOOL], DEEPSEEK.sampled_call("Rome"))
    assert added == DEEPSEEK.ids(
        "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>rain<｜tool▁output▁end｜><｜tool▁outputs▁end｜>"
    )
