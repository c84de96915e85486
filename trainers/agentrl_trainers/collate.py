"""Rows to the tensors of one forward pass: packed end to end, or right-padded. Only trained tokens become targets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from agentrl.errors import TrainerError
from agentrl.types import Batch, TrainRow


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass. N counts its trained tokens, row by row in order; values at masked slots are not in it."""

    input_ids: torch.Tensor  # [B, L] int64
    position_ids: torch.Tensor  # [B, L] int64
    segment_lengths: list[int] | None  # sum is L with B = 1; None when padded
    predictors_N: torch.Tensor  # [N] int64, flat index of the token before each target
    targets_N: torch.Tensor  # [N] int64
    behaviour_N: torch.Tensor  # [N] float32, logprobs recorded when sampled
    advantages_N: torch.Tensor  # [N] float32
    on_policy_N: torch.Tensor  # [N] bool, sampled by the very weights that are trained from
    temperature_N: torch.Tensor  # [N] float32

    def to(self, device: torch.device) -> MicroBatch:
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors)


def check_batch(batch: Batch, vocab_size: int) -> None:
    """Raise TrainerError, naming row and position, for a batch that cannot be trained honestly."""
    for index, row in enumerate(batch.rows):
        check_row(row, vocab_size, f"row {index} (session {row.session_id}) of the batch at version {batch.version}")
    if batch.num_tokens == 0:
        raise TrainerError(f"the batch at version {batch.version} has {len(batch.rows)} rows and no trained token")


def check_row(row: TrainRow, vocab_size: int, where: str) -> None:
    """Raise TrainerError, naming `where` and the position, for a row that cannot be trained honestly."""
    aligned = ("token_ids", "loss_mask", "logprobs", "advantages", *(["on_policy"] if row.on_policy else []))
    sizes = {name: len(getattr(row, name)) for name in aligned}
    if len(set(sizes.values())) != 1:
        raise TrainerError(f"{where} has fields of unequal length: {sizes}; all are aligned with token_ids")
    if not row.token_ids:
        raise TrainerError(f"{where} is empty; leave out rows without tokens")
    if not (math.isfinite(row.temperature) and row.temperature > 0):
        raise TrainerError(f"{where} has temperature {row.temperature}; it must be above 0")
    if min(row.token_ids) < 0 or max(row.token_ids) >= vocab_size:
        raise TrainerError(
            f"{where} has a token id outside 0..{vocab_size - 1}: engine and trainer have different models"
        )
    if not set(row.loss_mask) <= {0, 1}:
        raise TrainerError(f"{where} has loss_mask values {sorted(set(row.loss_mask) - {0, 1})}; each is 0 or 1")
    if row.loss_mask[0]:
        raise TrainerError(f"{where} trains its first token, which nothing precedes; a row starts with a prompt")
    for position in np.flatnonzero(row.loss_mask):
        logprob, advantage = row.logprobs[position], row.advantages[position]
        if not (math.isfinite(logprob) and math.isfinite(advantage)):
            raise TrainerError(
                f"{where} trains position {position} with logprob {logprob} and advantage {advantage}; "
                "both must be finite, or the token masked"
            )


def collate(rows: Sequence[TrainRow], *, packed: bool) -> MicroBatch:
    """Tensors of `rows` (checked before). No rows gives a filler of one token and N = 0."""
    if not rows:
        rows = [TrainRow(session_id="", token_ids=[0], loss_mask=[0], logprobs=[0.0], advantages=[0.0])]
    lengths = [len(row.token_ids) for row in rows]
    width = sum(lengths) if packed else max(lengths)
    starts = [sum(lengths[:index]) if packed else index * width for index in range(len(rows))]
    input_ids = torch.zeros(1 if packed else len(rows), width, dtype=torch.long)
    position_ids = torch.arange(width).repeat(input_ids.shape[0], 1)
    trained = [np.flatnonzero(row.loss_mask) for row in rows]  # of each row: positions with loss_mask 1
    flat_N = np.concatenate([start + positions for start, positions in zip(starts, trained, strict=True)])
    for row, start, length in zip(rows, starts, lengths, strict=True):
        input_ids.view(-1)[start : start + length] = torch.tensor(row.token_ids)
        if packed:
            position_ids[0, start : start + length] = torch.arange(length)

    def at_trained(field: str) -> torch.Tensor:
        values = [_array(row, field)[positions] for row, positions in zip(rows, trained, strict=True)]
        return torch.from_numpy(np.concatenate(values))

    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        segment_lengths=lengths if packed else None,
        predictors_N=torch.from_numpy(flat_N - 1),
        targets_N=at_trained("token_ids"),
        behaviour_N=at_trained("logprobs").float(),
        advantages_N=at_trained("advantages").float(),
        on_policy_N=at_trained("on_policy").bool(),
        temperature_N=torch.tensor([row.temperature for row in rows]).repeat_interleave(
            torch.tensor([len(positions) for positions in trained])
        ),
    )


def _array(row: TrainRow, field: str) -> np.ndarray[Any, Any]:
    """`on_policy` may be left out, which is nowhere."""
    return np.asarray(getattr(row, field) or [0] * len(row.token_ids))
