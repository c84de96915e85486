"""Keeps text from forging tokens (invariant 13): spellings of control tokens are disguised before a template runs.

A disguise is a word that no tokenizer treats specially and no template has reason to touch. After the template has
run, only its own markers are control tokens; the disguises are taken off and encoded as plain text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import Encoding, Tokenizer

from agentrl.errors import ConfigError

DISGUISE = re.compile(r"(zq[0-9a-f]{16}x)(\d+)e")


class ControlTokens:
    """The added tokens of one tokenizer, and how to encode text in which none of them may be matched.

    Runs of white space that some tokenizers add as tokens carry no control and are left alone.
    """

    def __init__(self, backend: Tokenizer, special: set[int]) -> None:
        added = backend.get_added_tokens_decoder()
        self.contents = {number: token.content for number, token in added.items() if token.content.strip()}
        self.special = special | {number for number in self.contents if added[number].special}
        self._any = _pattern(list(self.contents.values()))
        self._special = _pattern([text for number, text in self.contents.items() if number in self.special])
        normalizer = backend.normalizer  # matches a "normalized" token in its own normalized spelling
        spellings = {
            number: [text, normalizer.normalize_str(text)]
            for number, text in self.contents.items()
            if normalizer is not None and added[number].normalized
        }
        self._any_normalized = _pattern([text for both in spellings.values() for text in both])
        self._special_normalized = _pattern([t for n, both in spellings.items() if n in self.special for t in both])
        self._backend = backend
        self._plain = _without_added_tokens(backend, set(self.contents))

    def __contains__(self, token_id: int) -> bool:
        return token_id in self.contents

    def spelled_in(self, text: str, *, special_only: bool) -> list[tuple[int, int]]:
        """Where `text` spells a control token: [start, end) in characters, without overlaps, in order."""
        pattern, normalized = (
            (self._special, self._special_normalized) if special_only else (self._any, self._any_normalized)
        )
        if (normalizer := self._backend.normalizer) is not None and normalized.search(normalizer.normalize_str(text)):
            return [(0, len(text))]  # "＜think＞" may become "<think>" inside the tokenizer
        return [match.span() for match in pattern.finditer(text)]

    def plain_ids(self, text: str) -> list[int]:
        """The ids of `text` as text, none of them a control token."""
        ids = encoded(self._plain, text).ids
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
        self._nonce = f"zq{secrets.token_hex(8)}x"  # of letters and digits, which templates and JSON leave as they are
        self._hidden: list[str] = []

    def mark(self) -> str:
        """A word that occurs nowhere else, to find a place in the rendered text again."""
        return f"{self._nonce}mark"

    def hide(self, text: str, *, special_only: bool = False) -> str:
        pieces, at = [], 0
        for start, end in self._controls.spelled_in(text, special_only=special_only):
            pieces += [text[at:start], f"{self._nonce}{len(self._hidden)}e"]
            self._hidden.append(text[start:end])
            at = end
        return "".join([*pieces, text[at:]]) if at else text

    def hide_all(self, value: Any) -> Any:
        """The same for every string inside JSON-like data, keys included."""
        if isinstance(value, str):
            return self.hide(value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide_all(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.hide_all(item) for item in value]
        return value

    def used_in(self, text: str) -> bool:
        return bool(self._hidden) and self._nonce in text

    def reveal(self, text: str) -> str:
        return DISGUISE.sub(lambda match: self._hidden[int(match[2])] if match[1] == self._nonce else match[0], text)


def encoded(tokenizer: Tokenizer, text: str) -> Encoding:
    """A text's encoding, control tokens matched. Asked for as a batch, which lets other threads run meanwhile."""
    return tokenizer.encode_batch([text], add_special_tokens=False)[0]


def _pattern(contents: list[str]) -> re.Pattern[str]:
    longest_first = sorted(contents, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _without_added_tokens(backend: Tokenizer, token_ids: set[int]) -> Tokenizer:
    data = json.loads(backend.to_str())
    kept = [token for token in data["added_tokens"] if token["id"] not in token_ids]
    data.update(added_tokens=kept, post_processor=None, truncation=None, padding=None)
    plain = Tokenizer.from_str(json.dumps(data))
    if any(plain.token_to_id(token["content"]) != token["id"] for token in kept):
        plain = Tokenizer.from_str(json.dumps(data | {"added_tokens": []}))
    return plain
