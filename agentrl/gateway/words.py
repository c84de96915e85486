"""Encodes ASCII text word by word and remembers the words: the tokenizer itself takes ten times as long.

Byte-level BPE tokenizers first cut a text into words by regular expressions, then encode each word apart, so the ids of
a text are those of its words. Cutting is done here with Python's `re`, for text in which both kinds of expression mean
the same: ASCII, where a class such as `\\p{L}` is a handful of characters.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

KEPT_WORDS, KEPT_LENGTH = 50_000, 64
"""Words that are remembered, and the characters of the longest one that is: some 15 MB."""

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the ByteLevel pre-tokenizer cuts by, unless told otherwise (tokenizers, `byte_level.rs`)."""

ASCII = [chr(code) for code in range(128)]
ESCAPES = frozenset("sSdDwWrnt")
CATEGORY = re.compile(r"\\p\{([A-Z][a-z]?)\}")

UNICODE_FORMS = frozenset({"NFC", "NFD", "NFKC", "NFKD"})
"""Normalizers that leave ASCII as it is."""

Split = Callable[[str], list[str]]


class WordEncoder:
    """The ids that a tokenizer gives for a text in which none of its added tokens is spelled."""

    def __init__(self, backend: Tokenizer, data: Mapping[str, Any] | None = None) -> None:
        """data: the tokenizer's JSON, where the caller has read it; with a large vocabulary that is megabytes."""
        self._backend = backend
        # One object for each id: what is remembered is copied and compared as pointers, not number by number.
        self._numbers: dict[int, int] = {}
        self._ids_of: dict[str, tuple[int, ...]] = _Words(backend, self._numbers)
        self._splits = _splits(json.loads(backend.to_str()) if data is None else data)
        if self._splits is not None and not self._agrees():
            self._splits = None

    @property
    def by_words(self) -> bool:
        """Whether it is of a kind that can be done word by word. Others are asked, text by text."""
        return self._splits is not None

    def ids(self, text: str) -> list[int]:
        if self._splits is None or not text.isascii():
            return [self._numbers.setdefault(number, number) for number in asked(self._backend, text)]
        return self._of_words(text, self._splits)

    def _of_words(self, text: str, splits: Sequence[Split]) -> list[int]:
        words = [text]
        for split in splits:
            words = split(words[0]) if len(words) == 1 else [word for whole in words for word in split(whole)]
        return list(chain.from_iterable(map(self._ids_of.__getitem__, words)))

    def _agrees(self) -> bool:
        """With the tokenizer, before it is relied on."""
        assert self._splits is not None
        added = [token.content for token in self._backend.get_added_tokens_decoder().values()]
        texts = [text for text in _trials() if not any(content in text for content in added)]
        return all(self._of_words(text, self._splits) == asked(self._backend, text) for text in texts)


def normalizes(data: Mapping[str, Any]) -> bool:
    """Whether a tokenizer, as its JSON says, changes more of a text than the Unicode form of its characters."""
    return data["normalizer"] is not None and data["normalizer"]["type"] not in UNICODE_FORMS


def asked(backend: Tokenizer, text: str) -> list[int]:
    """Of the tokenizer itself. As a batch, which lets other threads run meanwhile; `fast` leaves out the offsets."""
    return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)


class _Words(dict[str, tuple[int, ...]]):
    def __init__(self, backend: Tokenizer, numbers: dict[int, int]) -> None:
        super().__init__()
        self._model = backend.model
        self._written = ByteLevel(add_prefix_space=False, use_regex=False)
        self._numbers = numbers

    def __missing__(self, word: str) -> tuple[int, ...]:
        ((written, _),) = self._written.pre_tokenize_str(word)
        found = (token.id for token in self._model.tokenize(written))
        ids = tuple(self._numbers.setdefault(number, number) for number in found)
        if len(word) <= KEPT_LENGTH:
            if len(self) >= KEPT_WORDS:
                self.clear()
            self[word] = ids
        return ids


def _splits(data: Mapping[str, Any]) -> list[Split] | None:
    """How text becomes words, one cut after the other; None for a tokenizer that does more than cut and encode."""
    if normalizes(data) or data["model"]["type"] != "BPE" or data["model"]["dropout"]:
        return None
    steps = data["pre_tokenizer"]
    steps = steps.get("pretokenizers", [steps]) if steps else []
    if not steps or any(step["type"] == "ByteLevel" for step in steps[:-1]) or steps[-1]["type"] != "ByteLevel":
        return None
    found: list[Split] = []
    for step in steps:
        pattern = _pattern(step)
        if pattern is None:
            return None
        if pattern:
            compiled = compiled_for_ascii(pattern)
            if compiled is None:
                return None
            found.append(_isolating(compiled))
    return found


def _pattern(step: Mapping[str, Any]) -> str | None:
    """What a step makes words of by itself; "" for one that leaves them as they are, None for one that is not known."""
    match step:
        case {"type": "ByteLevel", "add_prefix_space": False, "use_regex": regex}:
            return GPT2 if regex else ""
        case {"type": "Digits", "individual_digits": apart}:
            return r"\p{N}" if apart else r"\p{N}+"
        case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}:
            return str(pattern)
    return None


def _isolating(pattern: re.Pattern[str]) -> Split:
    """Cuts out every match as a word; what stands between two matches is a word, too."""

    def split(text: str) -> list[str]:
        words = pattern.findall(text)
        if sum(map(len, words)) == len(text):
            return words
        words, at = [], 0
        for match in pattern.finditer(text):
            words += [word for word in (text[at : match.start()], match[0]) if word]
            at = match.end()
        return words + ([text[at:]] if at < len(text) else [])

    return split


def compiled_for_ascii(pattern: str) -> re.Pattern[str] | None:
    """A tokenizer's expression (Oniguruma's syntax) as one that finds the same in ASCII text; None if that is unsure.

    Unsure are anchors, sets within sets, repeated counts and escapes beyond the common ones.
    """
    done, at, in_set = [], 0, False
    while at < len(pattern):
        char = pattern[at]
        if category := CATEGORY.match(pattern, at):
            done.append(_characters(category[1], in_set=in_set))
            at = category.end()
            continue
        following = pattern[at + 1 : at + 2]
        if char == "\\":
            if following.isalnum() and following not in ESCAPES:
                return None
            done.append(char + following)
            at += 2
            continue
        if in_set and char in "[&|~" and (char == "[" or following == char):
            return None
        if not in_set and (char in "^$" or (char == "}" and following in ("+", "*", "?", "{"))):
            return None
        if char == "[" and following == "^":
            char, at = "[^", at + 1
        in_set = char[0] == "[" or (in_set and char != "]")
        done.append(char)
        at += 1
    try:
        compiled = re.compile("".join(done), re.ASCII)
    except re.error:
        return None
    return None if compiled.groups or compiled.match("") else compiled


def _characters(category: str, *, in_set: bool) -> str:
    """The ASCII characters of a Unicode category, for an expression."""
    found = "".join(re.escape(char) for char in ASCII if unicodedata.category(char).startswith(category))
    return found if in_set else (f"[{found}]" if found else "(?!)")


def _trials() -> list[str]:
    """In them every part has every other one for a neighbour."""
    parts = [
        "word",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "7",
        "1234",
        "don't",
        "I'LL",
        "Xml",
        "...",
        "(",
        "_",
        "#!",
        "\x0b",
        "\x1f",
    ]
    count = len(parts)  # a prime: each step meets all of them
    return ["".join(parts[step * index % count] for index in range(count + 1)) for step in range(1, count)]
