"""Encodes texts section by section: what stands between two added tokens is encoded apart from the rest, so it can be
remembered. Conversations repeat their sections (system prompts, questions of a group, every earlier turn).
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from tokenizers import Tokenizer

from agentrl.gateway.words import WordEncoder, asked, normalizes

KEPT_SECTIONS, KEPT_LENGTH = 4096, 4_000
"""Sections that are remembered, and the characters of the longest one that is: 130 MB at the very most."""


class SectionEncoder:
    """Gives the ids that the tokenizer itself gives for the whole text.

    Where the tokenizer looks across the border of an added token (it strips white space beside it, or normalises or
    marks the beginning of a text), the text is encoded whole.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._ids_of_section = lru_cache(KEPT_SECTIONS)(self._encode)
        added = backend.get_added_tokens_decoder()
        self._added = {token.content: number for number, token in added.items()}
        longest_first = sorted(self._added, key=len, reverse=True)
        self._border = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        data = json.loads(backend.to_str())
        self._words = WordEncoder(backend, data)
        looks_beyond = any(
            token.lstrip or token.rstrip or token.single_word or (token.normalized and data["normalizer"] is not None)
            for token in added.values()
        )
        pre_tokenizer = json.dumps(data["pre_tokenizer"])
        marks_beginnings = '"Metaspace"' in pre_tokenizer or '"add_prefix_space": true' in pre_tokenizer
        self.apart = not normalizes(data) and not looks_beyond and not marks_beginnings

    def ids(self, text: str) -> list[int]:
        if not self.apart:
            return asked(self._backend, text)
        ids: list[int] = []
        at = 0
        for border in self._border.finditer(text):
            if border.start() > at:
                ids += self._section(text[at : border.start()])
            ids.append(self._added[border[0]])
            at = border.end()
        if at < len(text):
            ids += self._section(text[at:])
        return ids

    def _section(self, text: str) -> tuple[int, ...]:
        return self._ids_of_section(text) if len(text) <= KEPT_LENGTH else self._encode(text)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._words.ids(text))
