"""Encoding section by section gives what the tokenizer gives for the whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gateway_builders import MARKS, SPECIAL, backend
from hypothesis import given
from hypothesis import strategies as st
from template_families import FAMILIES, TemplateFamily, backend_of
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from agentrl.gateway.sections import SectionEncoder

PIECES = st.sampled_from([*SPECIAL, *MARKS, "hello", " hello", "\n", "  ", "🔥", "12", "<|im_", "end|>", "<think", "é"])
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@given(TEXTS, TEXTS)
def test_sections_add_up_to_the_whole_and_are_the_same_when_they_are_remembered(first: str, second: str) -> None:
    encoder = SectionEncoder(backend())
    assert encoder.apart
    for text in (first, first + second, second, first):
        assert encoder.ids(text) == whole(backend(), text)


@given(st.lists(PIECES | st.sampled_from(["\u0301", "e\u0301", "ﬁ"]), max_size=12).map("".join))
def test_sections_have_their_unicode_form_each(text: str) -> None:
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.normalizer = normalizers.NFC()
    encoder = SectionEncoder(tokenizer)
    assert encoder.apart
    assert encoder.ids(text) == whole(tokenizer, text)


def test_of_added_tokens_that_begin_alike_the_longest_is_taken() -> None:
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.add_tokens([AddedToken("<think>more", normalized=False), AddedToken("<th", normalized=False)])
    encoder = SectionEncoder(tokenizer)
    for text in ("a<think>more b", "a<think>mor b", "<th<think>", "<t<th"):
        assert encoder.ids(text) == whole(tokenizer, text)


def _stripping() -> Tokenizer:
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    return tokenizer


def _normalising() -> Tokenizer:
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.normalizer = normalizers.Prepend("▁")
    return tokenizer


def _marking() -> Tokenizer:
    tokenizer = Tokenizer.from_str(backend().to_str())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return tokenizer


@pytest.mark.parametrize("make", [_stripping, _normalising, _marking])
def test_a_tokenizer_that_looks_across_borders_encodes_whole_texts(make: Callable[[], Tokenizer]) -> None:
    tokenizer = make()
    encoder = SectionEncoder(tokenizer)
    assert not encoder.apart
    for text in ("hello <mask> hello", "a<|im_end|>b", " x"):
        assert encoder.ids(text) == whole(tokenizer, text)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(pieces=st.lists(PIECES, max_size=8))
def test_sections_of_every_family_s_marks_add_up_to_the_whole(family: TemplateFamily, pieces: list[str]) -> None:
    tokenizer = backend_of(family)
    marks = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    text = "".join(piece + mark for piece, mark in zip(pieces, marks, strict=False))
    assert SectionEncoder(tokenizer).ids(text) == whole(tokenizer, text)
