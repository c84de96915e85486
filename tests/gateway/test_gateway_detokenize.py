"""Ids → text as they come: whole characters, nothing of the prompt, the same text however the ids are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from template_families import DEEPSEEK, FAMILIES, QWEN3
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from agentrl.gateway.detokenize import Detokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["▁", "▁hello", "hello", "▁▁", "o", "é", "\n"]


def sentencepiece_like() -> Tokenizer:
    """Pieces with ▁ for spaces and a token for each byte, decoded as Llama 2's is."""
    words = ["<unk>", "<s>", "</s>", *BYTES, *PIECES]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<unk>", "<s>", "</s>")])
    return tokenizer


def wordpiece() -> Tokenizer:
    vocab = {"[UNK]": 0, "hel": 1, "##lo": 2, "you": 3}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


BACKENDS = {"byte-level": QWEN3.backend, "fullwidth": DEEPSEEK.backend, "byte-fallback": sentencepiece_like()}
DETOKENIZERS = {name: Detokenizer(backend) for name, backend in BACKENDS.items()}
every_kind = pytest.mark.parametrize("kind", BACKENDS)
SPM = BACKENDS["byte-fallback"]


def ids_of(kind: str, data: bytes) -> list[int]:
    """One token for each byte."""
    if kind == "byte-fallback":
        return [SPM.token_to_id(BYTES[byte]) for byte in data]
    return [token_id for byte in data for token_id in (BYTE_IDS[kind][byte],)]


def _byte_ids(kind: str) -> dict[int, int]:
    detokenizer, backend = DETOKENIZERS[kind], BACKENDS[kind]
    pieces = {detokenizer.token_bytes(i): i for i in reversed(range(backend.get_vocab_size()))}
    return {byte: pieces[bytes([byte])] for byte in range(256)}


BYTE_IDS = {kind: _byte_ids(kind) for kind in ("byte-level", "fullwidth")}


def streamed(kind: str, chunks: Sequence[Sequence[int]]) -> list[str]:
    stream = DETOKENIZERS[kind].stream()
    return [*[stream.feed(chunk) for chunk in chunks], stream.finish()]


@every_kind
@given(data=st.data())
def test_the_pieces_add_up_to_the_text_for_any_cut(kind: str, data: st.DataObject) -> None:
    one_id = st.integers(0, BACKENDS[kind].get_vocab_size() - 1)
    some_bytes = st.one_of(st.binary(max_size=6), st.text(max_size=4).map(str.encode)).map(lambda b: ids_of(kind, b))
    chunks = data.draw(st.lists(st.one_of(st.lists(one_id, max_size=4), some_bytes), max_size=6))
    everything = [token_id for chunk in chunks for token_id in chunk]
    whole = DETOKENIZERS[kind].text(everything)
    assert "".join(streamed(kind, chunks)) == whole
    assert "".join(streamed(kind, [[token_id] for token_id in everything])) == whole


@every_kind
@given(text=st.text(max_size=20))
@example(text="🔥é▁<0x41>")
def test_text_is_never_shown_in_parts_of_a_character(kind: str, text: str) -> None:
    pieces = streamed(kind, [[token_id] for token_id in ids_of(kind, text.encode())])
    if kind == "byte-fallback":
        text = text.removeprefix(" ")  # the space that such tokenizers put before a text
    assert "".join(pieces) == text
    assert pieces[-1] == ""
    assert all(len(piece) <= 1 for piece in pieces)


@every_kind
def test_case_51_an_emoji_over_four_chunks_comes_whole_and_a_cut_one_not_at_all(kind: str) -> None:
    fire = ids_of(kind, "🔥".encode())
    assert streamed(kind, [[token_id] for token_id in fire]) == ["", "", "", "🔥", ""]
    assert streamed(kind, [[token_id] for token_id in fire[:2]]) == ["", "", ""]


@every_kind
def test_case_50_the_rest_of_the_prompts_character_shows_nothing_of_the_prompt(kind: str) -> None:
    """Case 50."""
    rest = ids_of(kind, "🔥".encode()[2:])
    assert "".join(streamed(kind, [rest, ids_of(kind, b"hi")])) == "\ufffd\ufffdhi"


@every_kind
def test_bytes_that_are_no_text_are_replaced_as_python_replaces_them(kind: str) -> None:
    data = b"a\xf0\x9f\xffb\xc3(c"
    assert "".join(streamed(kind, [[i] for i in ids_of(kind, data)])) == data.decode(errors="replace")


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@given(data=st.data())
def test_a_byte_level_text_is_what_the_tokenizer_decodes(family: object, data: st.DataObject) -> None:
    backend = family.backend  # type: ignore[attr-defined]
    ids = data.draw(st.lists(st.integers(0, backend.get_vocab_size() - 1), max_size=12))
    whole = backend.decode(ids, skip_special_tokens=False)
    text = Detokenizer(backend).text(ids)
    assert whole.startswith(text)
    assert set(whole[len(text) :]) <= {"\ufffd"}


@given(st.lists(st.sampled_from([*PIECES, "</s>"]), max_size=8), st.text(max_size=3))
def test_a_byte_fallback_text_is_what_the_tokenizer_decodes(pieces: list[str], text: str) -> None:
    ids = [*[SPM.token_to_id(piece) for piece in pieces], *ids_of("byte-fallback", text.encode())]
    assert DETOKENIZERS["byte-fallback"].text(ids) == SPM.decode(ids, skip_special_tokens=False)


def test_a_tokenizer_that_decodes_by_neighbours_gives_its_text_at_the_end() -> None:
    stream = Detokenizer(wordpiece()).stream()
    assert [stream.feed([1]), stream.feed([2]), stream.feed([3]), stream.finish()] == ["", "", "", "hello you"]
