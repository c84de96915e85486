"""Text that is encoded word by word has the ids that the tokenizer itself gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers.pre_tokenizers import ByteLevel, Digits, Metaspace, PreTokenizer, Sequence, Split

from agentrl.assets import resolve_model
from agentrl.gateway.words import GPT2, KEPT_LENGTH, KEPT_WORDS, WordEncoder, asked, compiled_for_ascii

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? I'LL SAY: we've 1234567 reasons!",
    "def add(a, b):\n    return a + b  # 12 + 30\n\n\tclass XmlHttp {}  ...\r\n  ",
]
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def cut_by(*patterns: str) -> PreTokenizer:
    splits = [Split(Regex(pattern), "isolated") for pattern in patterns]
    return Sequence([*splits, ByteLevel(add_prefix_space=False, use_regex=False)])


PRE_TOKENIZERS = {
    "gpt2": ByteLevel(add_prefix_space=False),
    "ours": Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "qwen": cut_by(QWEN),
    "llama3": cut_by(LLAMA3),
    "gpt_oss": cut_by(O200K),
    "deepseek": cut_by(r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK),
}


def trained(pre_tokenizer: PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet))
    return tokenizer


ENCODERS = {name: WordEncoder(trained(made)) for name, made in PRE_TOKENIZERS.items()}
TOKENIZERS = {name: trained(made) for name, made in PRE_TOKENIZERS.items()}
PARTS = st.sampled_from(
    ["the", "I'LL", "don't", " ", "   ", "\n", "\r\n", "\t", "12345", "...", "#!", "{", "é", "中文", "🔥"]
)


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_the_tokenizers_of_the_common_families_are_done_word_by_word(name: str) -> None:
    assert ENCODERS[name].by_words


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
@given(text=st.one_of(st.text(st.characters(max_codepoint=127)), st.lists(PARTS).map("".join)))
def test_text_has_the_ids_that_the_tokenizer_gives(name: str, text: str) -> None:
    assert ENCODERS[name].ids(text) == asked(TOKENIZERS[name], text)


@given(st.lists(PARTS | st.sampled_from(["e\u0301", "ﬁ", "\u0301"])).map("".join))
def test_a_unicode_form_is_left_to_the_tokenizer_where_it_matters(text: str) -> None:
    assert FORMED.by_words
    assert FORMED.ids(text) == asked(FORMED_TOKENIZER, text)


def changed(**parts: object) -> Tokenizer:
    tokenizer = trained(PRE_TOKENIZERS["gpt2"])
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


FORMED_TOKENIZER = changed(normalizer=normalizers.NFC())
FORMED = WordEncoder(FORMED_TOKENIZER)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.Lowercase()},
        {"pre_tokenizer": Metaspace()},
        {"pre_tokenizer": ByteLevel(add_prefix_space=True)},
        {"pre_tokenizer": cut_by(r"^\w+|\W+")},
        {"pre_tokenizer": Sequence([Split(Regex(r"\s+"), "removed"), ByteLevel(add_prefix_space=False)])},
    ],
)
def test_a_tokenizer_that_does_more_than_cut_and_encode_is_asked_itself(parts: dict[str, object]) -> None:
    tokenizer = changed(**parts)
    encoder = WordEncoder(tokenizer)
    assert not encoder.by_words
    assert encoder.ids("the quick  fox\n") == asked(tokenizer, "the quick  fox\n")


def test_an_expression_of_which_python_makes_something_else_is_found_out() -> None:
    r"""Ruby's `\h` is a hexadecimal digit, `{1,3}+` is repeated, and sets may hold sets."""
    for pattern in (r"\h+", r"\p{N}{1,3}+|.", r"[a-z&&[^x]]+", r"\p{Han}+", r"(a)|b", r"^a", r"a*", r"["):
        assert compiled_for_ascii(pattern) is None, pattern
    found = compiled_for_ascii(GPT2)
    assert found is not None
    assert found.findall("it's 12  x\n") == ["it", "'s", " 12", " ", " x", "\n"]


def test_what_is_remembered_has_an_end() -> None:
    encoder = WordEncoder(trained(PRE_TOKENIZERS["gpt2"]))
    long = "x" * (KEPT_LENGTH + 1)
    assert encoder.ids(long) == asked(TOKENIZERS["gpt2"], long)
    kept = encoder._ids_of
    assert long not in kept
    kept.update({str(number): () for number in range(KEPT_WORDS)})
    assert encoder.ids("zebra") == asked(TOKENIZERS["gpt2"], "zebra")
    assert list(kept) == ["zebra"]


def test_the_embedded_policy_is_done_word_by_word() -> None:
    tokenizer = Tokenizer.from_file(str(resolve_model("agentrl:tiny") / "tokenizer.json"))
    assert WordEncoder(tokenizer).by_words


def test_added_tokens_do_not_keep_it_from_words() -> None:
    tokenizer = trained(PRE_TOKENIZERS["gpt2"])
    tokenizer.add_special_tokens([AddedToken("word", special=True)])
    assert WordEncoder(tokenizer).by_words
