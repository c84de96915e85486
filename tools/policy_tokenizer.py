"""The embedded policies' tokenizer: a byte-level BPE of a few hundred entries with every digit a token of its own.

Byte-level on purpose: one string has many token sequences and an emoji is several tokens, so tests that use it meet the
faults that real tokenizers show and a character tokenizer hides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from policy_skills import Skill
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTEXT = 1024  # tokens

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)
# As Qwen has them: single tokens that are not special, so that they stay in the decoded text for the parser.
MARKERS = ("<tool_call>", "</tool_call>")


def build_tokenizer(skills: Sequence[Skill], vocab_size: int, english: str, seed: int) -> PreTrainedTokenizerFast:
    """Merges are trained on transcripts of the skills and `english`. Raises ValueError when these yield too few."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL) - len(MARKERS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [text for skill in skills for text in _transcript_texts(skill, seed)]
    tokenizer.train_from_iterator([*texts, " ".join(english.split())], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKERS])
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(f"{tokenizer.get_vocab_size()} entries instead of {vocab_size}: the corpus is too small")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def attach_template(tokenizer: PreTrainedTokenizerFast, template: Path) -> None:
    tokenizer.chat_template = template.read_text(encoding="utf-8")


def _transcript_texts(skill: Skill, seed: int) -> list[str]:
    rng = random.Random(seed)
    written = [
        "\n".join(f"{message.role}\n{message.text}" for message in skill.write(rng, skill.warm_start).messages)
        for _ in range(200)
    ]
    return written + ([f"system\n{skill.signatures}"] * 50 if skill.signatures else [])
