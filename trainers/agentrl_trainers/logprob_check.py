"""The audit's independent check: exported weights against the logprobs that the engine recorded. No DeepSpeed here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from agentrl.errors import TrainerError
from agentrl.types import Row, TrainRow
from agentrl_trainers.collate import check_row, collate
from agentrl_trainers.model import load_policy
from agentrl_trainers.packing import pack
from agentrl_trainers.policy_loss import forward


def max_logprob_diffs(
    model_dir: str | Path,
    rows: Sequence[Row],
    temperatures: Sequence[float],
    version: int,
    *,
    tokens_per_pass: int = 4096,
) -> list[float | None]:
    """Largest |recorded - recomputed| logprob of each row, over its trained tokens that `version` sampled.

    model_dir: Hugging Face directory with the weights of `version`. temperatures: `[rows]`. None for a row without such
    a token. Tokens sampled over KV cache of older weights (swap mode `keep`) differ by design: give rows whose context
    was computed by `version` alone. Raises TrainerError for a row or directory that cannot be read.
    """
    if len(rows) != len(temperatures):
        raise TrainerError(f"the logprob check got {len(temperatures)} temperatures for {len(rows)} rows; one each")
    policy = load_policy(model_dir, logit_chunk=1024).eval()
    vocab_size = policy.lm.config.vocab_size
    chosen = [_of_version(row, temperature, version) for row, temperature in zip(rows, temperatures, strict=True)]
    for index, row in enumerate(chosen):
        check_row(row, vocab_size, f"row {index} of the logprob check")
    wanted = [index for index, row in enumerate(chosen) if any(row.loss_mask)]
    diffs: list[float | None] = [None] * len(rows)
    for indices in pack(wanted, [len(row.token_ids) for row in chosen], tokens_per_pass):
        batch = collate([chosen[index] for index in indices], packed=True)
        with torch.inference_mode():
            logprobs_N, _ = forward(policy, batch)
        gaps_N = (logprobs_N - batch.behaviour_N).abs()
        for index, part in zip(indices, gaps_N.split([sum(chosen[i].loss_mask) for i in indices]), strict=True):
            diffs[index] = float(part.max())
    return diffs


def _of_version(row: Row, temperature: float, version: int) -> TrainRow:
    """The row with only the trained tokens of `version` left in its mask."""
    mask = [0] * len(row.loss_mask)
    for span in row.versions:
        if span.version == version:
            mask[span.start : span.end] = row.loss_mask[span.start : span.end]
    return TrainRow(
        session_id="",
        token_ids=row.token_ids,
        loss_mask=mask,
        logprobs=[float("nan") if logprob is None else logprob for logprob in row.logprobs],
        advantages=[0.0] * len(row.token_ids),
        temperature=temperature,
    )
