"""A random two-layer Qwen3, rows for it, and the loss of a batch written out row by row as the oracle."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentrl.types import Batch, TrainRow

VOCAB = 40

torch.set_num_threads(1)  # tiny tensors: more threads only wait for each other


def save_tiny_model(directory: Path, *, seed: int = 0, tied: bool = True) -> Path:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # far from uniform, so that a wrong position or mask shows
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def row(
    length: int = 8,
    *,
    seed: int = 0,
    trained: list[int] | None = None,
    advantage: float = 1.0,
    logprobs: list[float] | None = None,
    temperature: float = 1.0,
) -> TrainRow:
    """A row of random tokens; the second half is trained unless positions are given."""
    rng = random.Random(seed)
    positions = list(range(max(1, length // 2), length)) if trained is None else trained
    mask = [int(position in positions) for position in range(length)]
    known = logprobs or [rng.uniform(-4.0, -1.0) for _ in range(length)]
    return TrainRow(
        session_id=f"s{seed}",
        token_ids=[rng.randrange(VOCAB) for _ in range(length)],
        loss_mask=mask,
        logprobs=[value if on else 0.0 for value, on in zip(known, mask, strict=True)],
        advantages=[advantage if on else 0.0 for on in mask],
        temperature=temperature,
    )


def mixed_batch() -> Batch:
    """Seven rows, 3 to 23 tokens, gaps in their masks, advantages of both signs, two temperatures."""
    rng = random.Random(7)
    rows = []
    for seed, length in enumerate((23, 3, 11, 17, 8, 5, 13)):
        trained = [position for position in range(1, length) if rng.random() < 0.6] or [length - 1]
        rows.append(
            row(length, seed=seed, trained=trained, advantage=rng.gauss(0, 1), temperature=(1.0, 0.5)[seed % 2])
        )
    return Batch(version=0, rows=rows)


def plain_logprobs(model: Qwen3ForCausalLM, one: TrainRow) -> torch.Tensor:
    """`[T - 1]` logprobs of tokens 1.. by transformers' own forward pass of this row alone."""
    ids = torch.tensor([one.token_ids])
    logits = model(input_ids=ids).logits[0, :-1].float() / one.temperature
    return torch.log_softmax(logits, -1).gather(-1, ids[0, 1:, None])[:, 0]


def plain_loss(model: Qwen3ForCausalLM, batch: Batch, *, low: float = 0.2, high: float = 0.2) -> torch.Tensor:
    """The token-mean clipped loss as a double loop over rows and tokens."""
    losses = []
    for one in batch.rows:
        logprobs = plain_logprobs(model, one)
        for position, trained in enumerate(one.loss_mask):
            if trained:
                ratio = torch.exp(logprobs[position - 1] - one.logprobs[position])
                bounded = min(max(ratio, torch.tensor(1 - low)), torch.tensor(1 + high))
                advantage = one.advantages[position]
                losses.append(-min(ratio * advantage, bounded * advantage))
    return torch.stack(losses).sum() / len(losses)


def plain_gradient(directory: Path, batch: Batch) -> dict[str, torch.Tensor]:
    """Checkpoint name -> gradient of `plain_loss`, with transformers' eager attention."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    plain_loss(model, batch).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def on_policy(directory: Path, batch: Batch) -> Batch:
    """The same batch with the model's own logprobs recorded: every ratio is 1."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    for one in batch.rows:
        with torch.no_grad():
            known = [0.0, *plain_logprobs(model, one).tolist()]
        one.logprobs = [value if on else 0.0 for value, on in zip(known, one.loss_mask, strict=True)]
    return batch


def plain_updates(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    count: int = 3,
    loss_of: Callable[[], torch.Tensor] | None = None,
) -> None:
    """Updates at 1/3, 2/3, 3/3 of 1e-2, the norm clipped to 1; of `plain_loss` on `mixed_batch()` unless told."""
    for step in range(count):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (step + 1) / 3
        optimizer.zero_grad()
        loss = plain_loss(model, mixed_batch()) if loss_of is None else loss_of()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def plain_adamw(model: torch.nn.Module) -> torch.optim.AdamW:
    """(0.9, 0.95), decay 0.1 on matrices only."""
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95))


def relative_error(ours: np.ndarray, expected: torch.Tensor) -> float:
    difference = np.linalg.norm(ours.astype(np.float64) - expected.double().numpy())
    return float(difference / expected.double().norm())
