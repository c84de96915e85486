"""Labelled rows and pairs of random tokens, and the losses as plain PyTorch scripts over transformers: the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from trainer_builders import VOCAB, plain_logprobs, plain_updates, row
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForSequenceClassification,
)

from agentrl.types import Batch, TrainRow

LENGTHS = ((9, 14), (3, 4), (21, 6), (5, 5), (12, 17))  # of pairs: chosen, rejected
BETA = 0.3


def save_tiny_reward_model(directory: Path) -> Path:
    """A random body under a random head, so that every weight has a gradient."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        initializer_range=0.2,
        num_labels=1,
        pad_token_id=0,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def transcripts() -> Batch:
    """Seven rows, 3 to 23 tokens, with gaps in their masks."""
    rng = random.Random(3)
    rows = []
    for seed, length in enumerate((23, 3, 11, 17, 8, 5, 13)):
        trained = [position for position in range(1, length) if rng.random() < 0.6] or [length - 1]
        rows.append(row(length, seed=seed, trained=trained))
    return Batch(version=0, rows=rows)


def answers() -> Batch:
    """Five pairs; the second half of each row is the answer, with logprobs of a made-up reference."""
    return Batch(version=0, rows=[row(length, seed=10 + at) for at, length in enumerate(_flat())])


def scored() -> Batch:
    """Five pairs; the last token of each row is the one that is read."""
    return Batch(version=0, rows=[row(length, seed=30 + at, trained=[length - 1]) for at, length in enumerate(_flat())])


def _flat() -> list[int]:
    return [length for pair in LENGTHS for length in pair]


def plain_sft(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Mean over all trained tokens of minus the logprob, row by row and token by token."""
    losses = []
    for one in batch.rows:
        logprobs = plain_logprobs(model, one)
        losses += [-logprobs[position - 1] for position, trained in enumerate(one.loss_mask) if trained]
    return torch.stack(losses).mean()


def plain_dpo(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """Rafailov et al., equation 7, pair by pair."""
    losses = []
    for chosen, rejected in pairs_of(batch.rows):
        gains = []
        for one in (chosen, rejected):
            logprobs = plain_logprobs(model, one)
            answer = [position for position, trained in enumerate(one.loss_mask) if trained]
            gains.append(sum(logprobs[position - 1] - one.logprobs[position] for position in answer))
        losses.append(-torch.log(torch.sigmoid(BETA * (gains[0] - gains[1]))))
    return torch.stack(losses).mean()


def plain_reward_model(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    """The model's own logit of each row by itself, which transformers reads at the last token."""
    losses = []
    for chosen, rejected in pairs_of(batch.rows):
        better, worse = (score_of(model, one) for one in (chosen, rejected))
        losses.append(torch.log(1 + torch.exp(worse - better)))
    return torch.stack(losses).mean()


def score_of(model: PreTrainedModel, one: TrainRow) -> torch.Tensor:
    ids = torch.tensor([one.token_ids])
    hidden = model.model(input_ids=ids).last_hidden_state
    return model.score(hidden[0, -1])[0]


def pairs_of(rows: list[TrainRow]) -> list[tuple[TrainRow, TrainRow]]:
    return list(zip(rows[::2], rows[1::2], strict=True))


PLAIN: dict[str, tuple[Any, Callable[[PreTrainedModel, Batch], torch.Tensor], Callable[[], Batch]]] = {
    "sft": (AutoModelForCausalLM, plain_sft, transcripts),
    "dpo": (AutoModelForCausalLM, plain_dpo, answers),
    "reward_model": (AutoModelForSequenceClassification, plain_reward_model, scored),
}


def plain_gradient(kind: str, directory: Path) -> tuple[float, dict[str, torch.Tensor]]:
    """The loss, and checkpoint name -> its gradient."""
    make, loss_of, batch_of = PLAIN[kind]
    model = make.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    loss = loss_of(model, batch_of())
    loss.backward()
    return float(loss.detach()), {name: parameter.grad for name, parameter in model.named_parameters()}


def plain_steps(kind: str, directory: Path) -> dict[str, torch.Tensor]:
    """Weights after two AdamW updates at 1/3 and 2/3 of 1e-2, the norm clipped to 1."""
    make, loss_of, batch_of = PLAIN[kind]
    model = make.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    plain_updates(model, optimizer, count=2, loss_of=lambda: loss_of(model, batch_of()))
    return {name: parameter.detach() for name, parameter in model.named_parameters()}
