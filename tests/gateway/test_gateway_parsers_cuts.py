"""Parsers on any text, cut in any way."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parser_builders import COMMON_PIECES, NO_ARGUMENTS, ONE_CALL, PIECES, added_up, call_with, parsed, parser_of

from agentrl.gateway.parsers import FAMILIES
from agentrl.gateway.parsers.json_end import JsonEnd
from agentrl.gateway.parsers.source import Source

MARKED = re.compile(r"<\|(start|channel|message|end|call|return)\|>")


@st.composite
def texts(draw: st.DrawFn, family: str) -> str:
    """Marks, fragments and whole calls in any order, some in the arguments of calls."""
    pieces = st.sampled_from([*PIECES[family], *COMMON_PIECES])
    items = pieces
    if family in ONE_CALL:
        spelled = st.lists(pieces, max_size=4).map(lambda inner: call_with(family, "".join(inner)))
        items = pieces | st.sampled_from([ONE_CALL[family], NO_ARGUMENTS[family]]) | spelled
    return "".join(draw(st.lists(items, max_size=16)))


@st.composite
def families_and_texts(draw: st.DrawFn) -> tuple[str, str]:
    family = draw(st.sampled_from(sorted(FAMILIES)))
    return family, draw(texts(family))


def cut(text: str, points: list[int]) -> list[str]:
    at = [0, *sorted(point % (len(text) + 1) for point in points), len(text)]
    return [text[start:end] for start, end in pairwise(at)]


@given(families_and_texts(), st.lists(st.integers(0, 1000), max_size=12), st.booleans(), st.booleans(), st.booleans())
def test_how_a_text_is_cut_does_not_change_what_it_adds_up_to(
    sample: tuple[str, str], points: list[int], stopped: bool, in_reasoning: bool, has_tools: bool
) -> None:
    family, text = sample
    options: dict[str, Any] = (
        {"in_reasoning": in_reasoning} if has_tools else {"in_reasoning": in_reasoning, "tools": ()}
    )
    whole, by_character, by_points = (parser_of(family, **options) for _ in range(3))
    expected = added_up([*whole.feed(text), *whole.finish(stopped=stopped)])
    for parser, feeds in ((by_character, list(text)), (by_points, cut(text, points))):
        deltas = [delta for feed in feeds for delta in parser.feed(feed)]
        assert added_up([*deltas, *parser.finish(stopped=stopped)]) == expected
        assert parser.reasoning_end == whole.reasoning_end


@given(families_and_texts(), st.integers(0, 1000))
def test_what_was_cut_off_has_no_call_that_the_whole_text_has_not(sample: tuple[str, str], point: int) -> None:
    family, text = sample
    calls = parsed(family, text).calls
    cut_off = parsed(family, text[: point % (len(text) + 1)], stopped=False).calls
    assert cut_off == calls[: len(cut_off)]


@given(families_and_texts(), st.booleans())
def test_a_text_without_reasoning_and_calls_is_its_content(sample: tuple[str, str], stopped: bool) -> None:
    family, text = sample
    parser = parser_of(family)
    found = added_up([*parser.feed(text), *parser.finish(stopped=stopped)])
    if not found.calls and parser.reasoning_end == 0 and not (family == "gpt_oss" and MARKED.search(text)):
        assert found.content == text


@given(families_and_texts())
def test_without_tools_nothing_is_a_call(sample: tuple[str, str]) -> None:
    family, text = sample
    assert parsed(family, text, tools=()).calls == []


@given(families_and_texts())
def test_reasoning_is_stripped_and_white_space_is_all_that_is_lost_with_the_marks(sample: tuple[str, str]) -> None:
    family, text = sample
    found = parsed(family, text, tools=())
    assert found.reasoning == found.reasoning.strip(" \t\r\n")
    if family != "gpt_oss":
        said = iter(text)
        assert all(char in said for char in found.reasoning + found.content), "only left out, never moved or made up"


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON_VALUES.filter(lambda value: isinstance(value, dict | list)), st.booleans(), st.sampled_from([None, 1]))
def test_json_ends_where_it_was_written_to_end(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    end = JsonEnd()
    assert end.take(text + "]}", 0) == len(text)
    assert end.done


@given(st.lists(st.sampled_from([*'{}[]",:\\ \n01-+.eEu', "true", "null", '{"a":', '"b"', "\\u00e9"]), max_size=20))
def test_json_ends_where_the_standard_library_ends_it(pieces: list[str]) -> None:
    text = "".join(pieces)
    end = JsonEnd()
    at = end.take(text, 0)
    try:
        _, expected = json.JSONDecoder(parse_constant=int).raw_decode(text)
    except ValueError:
        expected = -1
    assert (at if end.done else -1) == (expected if text.startswith(("{", "[")) else -1)


class CountingSource(Source):
    """Counts the characters that are copied when text is added, and those that are read again."""

    work = 0

    def add(self, text: str) -> None:
        CountingSource.work += self.fed - self.position + len(text)
        super().add(text)

    def back(self, start: int) -> None:
        CountingSource.work += 2 * (self.position - start) + (self.fed - self.position if start < self._base else 0)
        super().back(start)


@pytest.mark.parametrize("family", sorted(ONE_CALL))
@pytest.mark.parametrize("size", [3, 10_000])
def test_work_on_calls_that_never_end_is_linear(family: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.gateway.parsers.script.Source", CountingSource)
    beginnings = [call[:end] for call in (ONE_CALL[family], NO_ARGUMENTS[family]) for end in range(1, len(call), 4)]
    for unit in [*beginnings, *(f'{beginning}{{"a":"' for beginning in beginnings)]:
        text = unit * (10_000 // len(unit))
        CountingSource.work = 0
        parsed(family, *(text[at : at + size] for at in range(0, len(text), size)), stopped=False)
        assert CountingSource.work <= 20 * len(text), unit


@given(families_and_texts(), st.text(alphabet='{}[]":, \\a', max_size=8), st.integers(1, 7))
def test_work_on_any_text_that_repeats_itself_is_linear(sample: tuple[str, str], structure: str, size: int) -> None:
    family, unit = sample
    text = (unit + structure) * (10_000 // (len(unit + structure) or 1))
    CountingSource.work = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agentrl.gateway.parsers.script.Source", CountingSource)
        parsed(family, *(text[at : at + size] for at in range(0, len(text), size)), stopped=False)
    assert CountingSource.work <= 20 * len(text), "each character is copied and read again a few times, however many"
