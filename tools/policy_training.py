"""Supervised training of an embedded policy: texts to padded batches, and one stage of optimisation."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from policy_skills import Mix, Skill
from policy_tokenizer import CONTEXT, TURN_END, TURN_START
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

Example = tuple[list[int], list[int]]  # token_ids [T], loss_mask [T]
ExampleSource = Callable[[random.Random], Example]


@dataclass(frozen=True)
class Stage:
    name: str
    steps: int
    learning_rate: float
    batch_size: int
    source: ExampleSource


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def copies(tokenizer: PreTrainedTokenizerFast, alphabet: Sequence[str]) -> ExampleSource:
    """Random strings to be repeated. The tasks are mostly copying, which episodes alone teach slowly."""

    def source(rng: random.Random) -> Example:
        text = "".join(rng.choices(alphabet, k=rng.randint(2, 12)))
        prompt = f"{TURN_START}user\n{text}{TURN_END}\n{TURN_START}assistant\n"
        return _joined(tokenizer, [(prompt, 0), (text + TURN_END, 1)])

    return source


def transcripts(tokenizer: PreTrainedTokenizerFast, skill: Skill, mix: Mix) -> ExampleSource:
    """Episodes of `mix`, only the assistant's tokens trained."""
    system = _tools_turn(tokenizer, skill)

    def source(rng: random.Random) -> Example:
        segments: list[tuple[str, int]] = [(system, 0)]
        for message in skill.write(rng, mix).messages:
            trained = int(message.role == "assistant")
            segments += [
                (f"{TURN_START}{message.role}\n", 0),
                (message.text + (TURN_END if trained else ""), trained),
                ("\n" if trained else f"{TURN_END}\n", 0),
            ]
        return _joined(tokenizer, segments)

    return source


def in_turn(sources: Sequence[ExampleSource]) -> ExampleSource:
    """One of `sources` after the other, so that every batch holds all of them alike."""
    turns = itertools.cycle(sources)

    def source(rng: random.Random) -> Example:
        return next(turns)(rng)

    return source


def train(
    model: Qwen3ForCausalLM, stage: Stage, *, pad_id: int, seed: int, on_step: Callable[[int, float], None]
) -> None:
    """AdamW with a short warm-up and a linear decay to a tenth. `on_step` gets the step and its loss."""
    rng = random.Random(f"{stage.name}-{seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    model.train()
    for step in range(stage.steps):
        rate = min((step + 1) / 20, 1.0 - 0.9 * step / stage.steps)
        for group in optimizer.param_groups:
            group["lr"] = stage.learning_rate * rate
        token_ids, loss_mask = _padded([stage.source(rng) for _ in range(stage.batch_size)], pad_id)
        logits = model(input_ids=token_ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), token_ids[:, 1:], reduction="none")
        weights = loss_mask[:, 1:]
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        on_step(step, float(loss.detach()))
    model.eval()


def _tools_turn(tokenizer: PreTrainedTokenizerFast, skill: Skill) -> str:
    """The rendered turn that declares the skill's tools: all that comes before the user's."""
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": ""}], tools=skill.make().tools or None, tokenize=False
    )
    return rendered[: rendered.index(f"{TURN_START}user")]


def _joined(tokenizer: PreTrainedTokenizerFast, segments: Sequence[tuple[str, int]]) -> Example:
    """Each segment encoded alone, as serving does it: sampled turns are never re-tokenised with their context."""
    token_ids: list[int] = []
    loss_mask: list[int] = []
    for text, trained in segments:
        ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        token_ids += ids
        loss_mask += [trained] * len(ids)
    return token_ids, loss_mask


def _padded(examples: Sequence[Example], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right padded token_ids [B, T] and loss_mask [B, T]; causal attention never looks at the padding."""
    width = max(len(ids) for ids, _ in examples)
    token_ids = torch.tensor([ids + [pad_id] * (width - len(ids)) for ids, _ in examples])
    loss_mask = torch.tensor([mask + [0] * (width - len(mask)) for _, mask in examples], dtype=torch.float32)
    return token_ids, loss_mask
