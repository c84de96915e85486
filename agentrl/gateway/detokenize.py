"""Token ids → text, byte for byte: no U+FFFD that the model did not write."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")
SPACE = "▁"


class StreamDecoder(Protocol):
    """One sample's text as its ids come. What `feed` and `finish` give adds up to `Detokenizer.text` of all the ids."""

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these complete. Bytes of an unfinished character are held back."""
        ...

    def finish(self) -> str:
        """What is left. A last character whose bytes are not all there is left out."""
        ...


class Detokenizer:
    """Decodes through bytes for byte-level and sentencepiece-like tokenizers, else through the tokenizer's own decoder.

    Bytes that are no UTF-8 become U+FFFD as Python's decoder has it.
    """

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        kinds = _kinds(json.loads(backend.to_str())["decoder"])
        self._alphabet = _byte_alphabet() if "ByteLevel" in kinds else None
        self._has_bytes = bool(kinds) and kinds.keys() <= {"ByteLevel", "ByteFallback", "Replace", "Fuse", *LEADING}
        self._leading = next((LEADING[kind](found) for kind, found in kinds.items() if kind in LEADING), 0)
        self._bytes: dict[int, bytes] = {}

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`. A last character whose bytes are not all there is left out."""
        stream = self.stream()
        return stream.feed(token_ids) + stream.finish()

    def stream(self) -> StreamDecoder:
        return _ByteStream(self, self._leading) if self._has_bytes else _OtherStream(self._backend)

    def joined(self, token_ids: Sequence[int]) -> bytes:
        known = self._bytes
        try:
            return b"".join([known[token_id] for token_id in token_ids])
        except KeyError:
            return b"".join(map(self.token_bytes, token_ids))

    def token_bytes(self, token_id: int) -> bytes:
        """What one token stands for; may be a part of a character."""
        if (known := self._bytes.get(token_id)) is None:
            known = self._bytes[token_id] = self._find_bytes(token_id)
        return known

    def _find_bytes(self, token_id: int) -> bytes:
        if (content := self._added.get(token_id)) is not None:
            return content.encode()
        piece = self._backend.id_to_token(token_id) or ""
        if self._alphabet is not None and all(char in self._alphabet for char in piece):
            return bytes(self._alphabet[char] for char in piece)
        if match := BYTE_FALLBACK.fullmatch(piece):
            return bytes.fromhex(match[1])
        return piece.replace(SPACE, " ").encode()


class _ByteStream:
    """`leading` spaces at the very beginning belong to the tokenizer, not to the text."""

    def __init__(self, detokenizer: Detokenizer, leading: int) -> None:
        self._detokenizer = detokenizer
        self._leading = leading
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, token_ids: Sequence[int]) -> str:
        text = self._decoder.decode(self._detokenizer.joined(token_ids))
        while self._leading and text:
            text, self._leading = (text[1:], self._leading - 1) if text[0] == " " else (text, 0)
        return text

    def finish(self) -> str:
        return ""


class _OtherStream:
    """Tokenizers of other kinds look at neighbours to decode (WordPiece, say): all the text comes at the end."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._ids: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> str:
        self._ids += token_ids
        return ""

    def finish(self) -> str:
        return str(self._backend.decode(self._ids, skip_special_tokens=False))


LEADING = {
    "Strip": lambda found: int(found["start"]) if found["content"] == " " else 0,
    "Metaspace": lambda found: 0 if found["prepend_scheme"] == "never" else 1,
}
"""How many spaces a decoder takes off the beginning."""


def _kinds(decoder: Any) -> dict[str, Any]:
    """The decoders by their kind, those of a sequence each."""
    if decoder is None:
        return {}
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    return {part["type"]: part for part in parts}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
