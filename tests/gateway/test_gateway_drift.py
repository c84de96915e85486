"""Drift: recorded ids against a fresh rendering of the same conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_families import (
    DEEPSEEK,
    FAMILIES,
    HARMONY,
    LLAMA3,
    QWEN3,
    TOOL,
    TemplateFamily,
    answer,
    call,
    result,
    user,
)

from agentrl.gateway.drift import Drift, drift_of
from agentrl.gateway.render import RenderError

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def drift(family: TemplateFamily, messages: list[dict[str, Any]], row: list[int], tools: Any = None) -> Drift | None:
    return drift_of(family.renderer, messages, tools, family.variables, row)


def spelled_as_usual(family: TemplateFamily, said: str) -> list[int]:
    return family.ids(said.join(family.says))


@every_family
@pytest.mark.parametrize("ended", [True, False])
def test_ids_that_the_tokenizer_would_give_have_no_drift(family: TemplateFamily, ended: bool) -> None:
    if family is QWEN3:
        sample = family.ids("<think>\n\n</think>\n\nhello<|im_end|>")  # as its template writes a last answer
    else:
        sample = spelled_as_usual(family, "hello")
    row = [*family.renderer.first([user("q")], None, family.variables), *sample]
    assert drift(family, [user("q"), answer("hello")], row if ended else row[:-1]) is None


@every_family
def test_a_calls_row_has_no_drift_from_its_usual_spelling(family: TemplateFamily) -> None:
    before, after = family.calls
    sample = family.ids(before + ("Rome" if family.call_value else '{"city": "Rome"}') + after)
    if family is QWEN3:
        sample = [*family.ids("<think>\n\n</think>\n\n"), *sample]
    row = [*family.renderer.first([user("q")], [TOOL], family.variables), *sample]
    assert drift(family, [user("q"), call("Rome")], row, [TOOL]) is None


def test_an_odd_spelling_is_counted_from_where_it_begins() -> None:
    prompt = LLAMA3.renderer.first([user("q")])
    assert len(LLAMA3.ids("hello")) == 1
    row = [*prompt, *LLAMA3.sampled_answer("hello")]  # h, e, l, l, o
    found = drift(LLAMA3, [user("q"), answer("hello")], row)
    assert found == Drift(len(prompt) + 5, len(prompt) + 1, len(prompt))


def test_a_thought_that_the_template_drops_later_is_drift_from_its_turn_on() -> None:
    first = QWEN3.renderer.first([user("q")])
    thought = "<think>\nlet me\n</think>\n\nhello"
    sample = QWEN3.ids(thought + "<|im_end|>")
    added = QWEN3.renderer.extension([user("q")], answer(thought), [user("more")], None, sample)
    assert added is not None
    second = QWEN3.ids("<think>\n\n</think>\n\nhello<|im_end|>")
    row = [*first, *sample, *added, *second]
    found = drift(QWEN3, [user("q"), answer(thought), user("more"), answer("hello")], row)
    dropped = len(QWEN3.ids("<think>\nlet me\n</think>\n\n"))
    assert found == Drift(len(row) - 1, len(row) - 1 - dropped, len(first))


def test_harmonys_two_end_marks_are_drift_in_the_middle_and_not_at_the_end() -> None:
    family, talk = HARMONY, [user("q"), answer("hello"), user("more"), answer("hello")]
    first = family.renderer.first([user("q")])
    sample = spelled_as_usual(family, "hello")
    added = family.renderer.extension([user("q")], answer("hello"), [user("more")], None, sample)
    assert added is not None
    row = [*first, *sample, *added, *sample]
    assert drift(family, talk, row) == Drift(len(row) - 1, len(row) - 1, len(first) + len(sample) - 1)


@given(st.lists(st.sampled_from(["Rome", "Oslo"]), min_size=1, max_size=3))
def test_the_common_prefix_is_where_both_first_differ(cities: list[str]) -> None:
    history: list[dict[str, Any]] = [user("go")]
    row = DEEPSEEK.renderer.first(history, [TOOL], DEEPSEEK.variables)
    for city in cities:
        sample = DEEPSEEK.sampled_call(city)
        added = DEEPSEEK.renderer.extension(history, call(city), [result("ok")], [TOOL], sample, DEEPSEEK.variables)
        assert added is not None
        row += [*sample, *added]
        history += [call(city), result("ok")]
    row += DEEPSEEK.sampled_answer("hello")
    found = drift(DEEPSEEK, [*history, answer("hello")], row, [TOOL])
    fresh = DEEPSEEK.ids(DEEPSEEK.written([*history, answer("hello")], [TOOL], prompt=False))
    assert found is not None
    assert row[: found.common_prefix] == fresh[: found.common_prefix]
    assert row[found.common_prefix] != fresh[found.common_prefix]


def test_a_conversation_without_a_last_answer_is_refused() -> None:
    with pytest.raises(ValueError, match="ends with an answer"):
        drift(LLAMA3, [user("q")], [])


def test_a_conversation_that_the_template_refuses_says_so() -> None:
    with pytest.raises(RenderError, match="no previous assistant message"):
        drift(HARMONY, [result("x"), answer("a")], [])
