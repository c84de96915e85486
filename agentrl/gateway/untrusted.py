"""Keeps text from forging tokens (invariant 13): spellings of control tokens are disguised before a template runs.

A disguise is a word that no tokenizer treats specially and no template has reason to touch. After the template has
run, only its own markers are control tokens; the disguises are taken off and encoded as plain text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import deque
from collections.abc import Mapping, Set
from functools import partial
from typing import Any

import orjson
from tokenizers import Encoding, Tokenizer

from agentrl.errors import ConfigError
from agentrl.gateway.words import WordEncoder, asked

DISGUISE = re.compile(r"(zq[0-9a-f]{16}x)(\d+)e")


class Spellings:
    """Finds the spellings of some tokens in text. Fast for text in which there is none."""

    def __init__(self, contents: Mapping[int, str], special: Set[int] = frozenset()) -> None:
        self.special = special
        self._ids = {content: number for number, content in contents.items()}
        self._firsts = tuple(sorted({content[0] for content in self._ids}))
        # A character that JSON escapes looks like its escape.
        self._first_bytes = [first.encode() if first >= " " and first not in '"\\' else b"\\" for first in self._firsts]
        self._pattern = re.compile(_trie(set(self._ids)) if self._ids else r"(?!)")

    def find(self, text: str) -> list[tuple[int, int, int]]:
        """(token id, start, end) in characters, in order, without overlaps; the longest where several begin."""
        for first in self._firsts:
            if first in text:
                break
        else:
            return []
        return [(self._ids[match[0]], *match.span()) for match in self._pattern.finditer(text)]

    def may_be_in(self, data: bytes) -> bool:
        """False only if no string of this JSON spells one of the tokens."""
        return any(first in data for first in self._first_bytes)

    def __bool__(self) -> bool:
        return bool(self._ids)


def control_contents(backend: Tokenizer) -> dict[int, str]:
    """The added tokens but runs of white space, which some tokenizers add as tokens and which carry no control."""
    return {n: token.content for n, token in backend.get_added_tokens_decoder().items() if token.content.strip()}


class ControlTokens:
    """The added tokens of one tokenizer, and how to encode text in which none of them may be matched.

    `structural` are those that an assistant's text may not spell either: they end turns or begin them.
    """

    def __init__(self, backend: Tokenizer, structural: Set[int]) -> None:
        added = backend.get_added_tokens_decoder()
        self.contents = control_contents(backend)
        self.structural = structural
        self.spellings = Spellings(self.contents)
        self._structural = Spellings(self._only_structural(self.contents))
        self._normalizer = normalizer = backend.normalizer
        # A normalizer matches a "normalized" token in its own normalized spelling.
        raw = {n: text for n, text in self.contents.items() if normalizer is not None and added[n].normalized}
        written = {n: normalizer.normalize_str(text) for n, text in raw.items()}
        self._normalized = [Spellings(raw), Spellings({n: text for n, text in written.items() if text})]
        self._structural_normalized = [
            Spellings(self._only_structural(raw)),
            Spellings(self._only_structural({n: text for n, text in written.items() if text})),
        ]
        self._has_normalized = any(self._normalized)
        plain = _without_added_tokens(backend, set(self.contents))
        self._plain_ids = partial(asked, plain) if plain.get_added_tokens_decoder() else WordEncoder(plain).ids

    def _only_structural(self, contents: Mapping[int, str]) -> dict[int, str]:
        return {number: text for number, text in contents.items() if number in self.structural}

    def __contains__(self, token_id: int) -> bool:
        return token_id in self.contents

    def spelled_in(self, text: str, *, is_answer: bool) -> list[tuple[int, int]]:
        """Where `text` spells a control token: [start, end) in characters, without overlaps, in order."""
        normalized = self._structural_normalized if is_answer else self._normalized
        if self._has_normalized:
            written = self._normalizer.normalize_str(text)  # "＜think＞" may become "<think>" inside the tokenizer
            if any(spellings.find(written) for spellings in normalized):
                return [(0, len(text))]
        return [(start, end) for _, start, end in (self._structural if is_answer else self.spellings).find(text)]

    def surely_not_in(self, value: Any) -> bool:
        """Whether no string inside JSON-like data spells a control token: a quick look, which may miss that."""
        if self._has_normalized:
            return False
        try:
            return not self.spellings.may_be_in(orjson.dumps(value))
        except TypeError:  # half a character, a number of 20 digits
            return False

    def plain_ids(self, text: str) -> list[int]:
        """The ids of `text` as text, none of them a control token."""
        ids = self._plain_ids(text)
        if not any(token_id in self.contents for token_id in ids):
            return ids
        if len(text) < 2:
            raise ConfigError(
                f"the tokenizer has the single character {text!r} as a control token, so text can forge it"
            )
        middle = len(text) // 2  # the model's own vocabulary holds the spelling: break it
        return self.plain_ids(text[:middle]) + self.plain_ids(text[middle:])


class Disguise:
    """The disguises of one rendering."""

    def __init__(self, controls: ControlTokens) -> None:
        self._controls = controls
        self._nonce = f"zq{_random_hex()}x"  # of letters and digits, which templates and JSON leave as they are
        self._hidden: list[str] = []

    def mark(self, name: str = "mark") -> str:
        """A word that occurs nowhere else, to find a place in the rendered text again."""
        return f"{self._nonce}{name}"

    def hide(self, text: str, *, is_answer: bool = False) -> str:
        pieces, at = [], 0
        for start, end in self._controls.spelled_in(text, is_answer=is_answer):
            pieces += [text[at:start], f"{self._nonce}{len(self._hidden)}e"]
            self._hidden.append(text[start:end])
            at = end
        return "".join([*pieces, text[at:]]) if at else text

    def hide_all(self, value: Any) -> Any:
        """The same for every string inside JSON-like data, keys included."""
        return value if self._controls.surely_not_in(value) else self._hide_all(value)

    def _hide_all(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(key): self._hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._hide_all(item) for item in value]
        return value

    def used_in(self, text: str) -> bool:
        return bool(self._hidden) and self._nonce in text

    def reveal(self, text: str) -> str:
        return DISGUISE.sub(lambda match: self._hidden[int(match[2])] if match[1] == self._nonce else match[0], text)


_drawn: deque[str] = deque()


def _random_hex() -> str:
    """16 random digits. Drawn many at a time: each draw is a system call that gives up Python's lock."""
    try:
        return _drawn.pop()
    except IndexError:
        digits = secrets.token_hex(8 * 256)
        _drawn.extend(digits[at : at + 16] for at in range(16, len(digits), 16))
        return digits[:16]


def encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    """A text's encoding, control tokens matched. Asked for as a batch, which lets other threads run meanwhile."""
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]


def _trie(words: set[str]) -> str:
    """A pattern for any of these words, the longest first: common beginnings are tried once, however many there are."""
    branches = [
        re.escape(first) + _trie({word[1:] for word in words if word[:1] == first})
        for first in sorted({word[0] for word in words if word})
    ]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + ("?" if "" in words else "")


def _without_added_tokens(backend: Tokenizer, token_ids: set[int]) -> Tokenizer:
    data = json.loads(backend.to_str())
    kept = [token for token in data["added_tokens"] if token["id"] not in token_ids]
    data.update(added_tokens=kept, post_processor=None, truncation=None, padding=None)
    plain = Tokenizer.from_str(json.dumps(data))
    if any(plain.token_to_id(token["content"]) != token["id"] for token in kept):
        plain = Tokenizer.from_str(json.dumps(data | {"added_tokens": []}))
    return plain
