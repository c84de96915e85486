"""Token ids → text, byte for byte: no U+FFFD that the model did not write."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Sequence

from tokenizers import Tokenizer

BYTE_FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


class Detokenizer:
    """Decodes through bytes for byte-level tokenizers, through the tokenizer's own decoder for others."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._added = {number: token.content for number, token in backend.get_added_tokens_decoder().items()}
        self._alphabet = (
            _byte_alphabet() if '"ByteLevel"' in json.dumps(json.loads(backend.to_str())["decoder"]) else None
        )
        self._bytes: dict[int, bytes] = {}

    def text(self, token_ids: Sequence[int]) -> str:
        """The text of `token_ids`. A last character whose bytes are not all there is left out."""
        if self._alphabet is None:
            return self._other_text(token_ids)
        data = b"".join(map(self.token_bytes, token_ids))
        return codecs.getincrementaldecoder("utf-8")("replace").decode(data)

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
        return piece.replace("▁", " ").encode()

    def _other_text(self, token_ids: Sequence[int]) -> str:
        text = str(self._backend.decode(list(token_ids), skip_special_tokens=False))
        cut = 0
        while cut < min(3, len(token_ids)) and BYTE_FALLBACK.fullmatch(
            self._backend.id_to_token(token_ids[-1 - cut]) or ""
        ):
            cut += 1
        return text.rstrip("\ufffd") if cut else text


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(hidden)}
