"""Rows to the tensors of one forward pass: packed end to end, or right-padded. Only trained tokens become targets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    rewards_N: torch.Tensor  # [N] float32, earned at the token
    row_N: torch.Tensor  # [N] int64, which of the pass's rows the token is in
    call_N: torch.Tensor  # [N] int64, which of the pass's calls sampled it, counted over all its rows
    temperature_N: torch.Tensor  # [N] float32
    known: Mapping[str, torch.Tensor] = field(default_factory=dict)  # [N] each: what StepTokens knows of these tokens

    def to(self, device: torch.device) -> MicroBatch:
        tensors: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **tensors, known={name: value.to(device) for name, value in self.known.items()})


def check_batch(batch: Batch, vocab_size: int) -> None:
    """Raise TrainerError, naming row and position, for a batch that cannot be trained honestly."""
    for index, row in enumerate(batch.rows):
        check_row(row, vocab_size, f"row {index} (session {row.session_id}) of the batch at version {batch.version}")
    if batch.num_tokens == 0:
        raise TrainerError(f"the batch at version {batch.version} has {len(batch.rows)} rows and no trained token")


def check_rewards(batch: Batch) -> None:
    """Raise TrainerError for a batch that a critic cannot learn from: rewards are read, not advantages."""
    for index, row in enumerate(batch.rows):
        where = f"row {index} (session {row.session_id}) of the batch at version {batch.version}"
        if not row.rewards:
            raise TrainerError(
                f"{where} has no rewards, which a critic learns from; "
                'set algorithm.advantage = "gae", or trainer.critic.enabled = false'
            )
        for position in np.flatnonzero(row.loss_mask):
            if not math.isfinite(row.rewards[position]):
                raise TrainerError(f"{where} has reward {row.rewards[position]} at position {position}")


def check_row(row: TrainRow, vocab_size: int, where: str) -> None:
    """Raise TrainerError, naming `where` and the position, for a row that cannot be trained honestly."""
    given = [name for name in ("on_policy", "rewards", "calls") if getattr(row, name)]
    aligned = ("token_ids", "loss_mask", "logprobs", "advantages", *given)
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


def collate(rows: Sequence[TrainRow], *, packed: bool, known: Mapping[str, torch.Tensor] | None = None) -> MicroBatch:
    """Tensors of `rows` (checked before). No rows gives a filler of one token and N = 0.

    known: vectors `[N]` found out about these rows' trained tokens; its "advantages" stand in for those of the rows.
    """
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
        advantages_N=known["advantages"] if known else at_trained("advantages").float(),
        on_policy_N=at_trained("on_policy").bool(),
        rewards_N=at_trained("rewards").float(),
        row_N=torch.arange(len(rows)).repeat_interleave(torch.tensor([len(positions) for positions in trained])),
        call_N=_counted_over_rows([_array(row, "calls")[at] for row, at in zip(rows, trained, strict=True)]),
        temperature_N=torch.tensor([row.temperature for row in rows]).repeat_interleave(
            torch.tensor([len(positions) for positions in trained])
        ),
        known=known or {},
    )


def _array(row: TrainRow, field: str) -> np.ndarray[Any, Any]:
    """`on_policy`, `rewards` and `calls` may be left out, which is 0 everywhere."""
    return np.asarray(getattr(row, field) or [0] * len(row.token_ids))


def _counted_over_rows(calls: Sequence[np.ndarray[Any, Any]]) -> torch.Tensor:
    """Numbers that are unique within a row, made unique over all rows: `[N]`."""
    offset, counted = 0, []
    for of_row in calls:
        counted.append(of_row.astype(np.int64) + offset)
        offset += int(of_row.max(initial=-1)) + 1
    return torch.from_numpy(np.concatenate(counted))
