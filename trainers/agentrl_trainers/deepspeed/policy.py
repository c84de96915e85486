"""The policy under training: a batch of rows in, one optimizer step, the numbers that describe it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from agentrl.types import Batch, TrainRow
from agentrl_trainers import packing
from agentrl_trainers.collate import MicroBatch, check_batch, collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.metrics import StepMetrics
from agentrl_trainers.model import PolicyModel
from agentrl_trainers.policy_loss import Share, batch_metrics, forward, policy_loss
from agentrl_trainers.schedule import learning_rate

OptimizerFactory = Callable[[PolicyModel, TrainerConfig], torch.optim.Optimizer]


def adamw(model: PolicyModel, config: TrainerConfig) -> torch.optim.Optimizer:
    """AdamW; weight decay on matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    if not config.weight_decay:
        groups = [{"params": matrices + vectors}]
    return torch.optim.AdamW(
        groups, lr=config.learning_rate, betas=config.betas, eps=config.adam_eps, weight_decay=config.weight_decay
    )


class DeepSpeedPolicy:
    """One rank's part of the policy. All ranks call every method together, with the same arguments."""

    def __init__(
        self, model: PolicyModel, config: TrainerConfig, total_steps: int, *, optimizer: OptimizerFactory = adamw
    ) -> None:
        self.config, self.total_steps = config, total_steps
        self.model_config = model.lm.config
        self.steps, self.skipped_steps = 0, 0
        self.zero = ZeroEngine(
            model,
            optimizer(model, config),
            stage=config.zero_stage,
            gradient_clip=config.gradient_clip,
            dtype=config.dtype,
            keep_below=config.zero3_keep_below,
        )

    def step(self, batch: Batch) -> StepMetrics:
        """One update on the whole `batch`, of which this rank takes its share.

        The loss is the mean over the batch's trained tokens, whatever the layout. A step that is not finite leaves the
        weights as they are and is counted; the schedule moves on all the same, as the version does.
        Raises TrainerError for a batch that cannot be trained.
        """
        started = time.monotonic()
        check_batch(batch, self.model_config.vocab_size)
        plan = self._plan(batch.rows)
        micro_batches = [self._collate([batch.rows[row] for row in rows]) for rows in plan]
        shares: list[Share] = []

        def loss_of(micro_batch: MicroBatch, model: Any) -> torch.Tensor:
            shares.append(policy_loss(model, micro_batch, batch.num_tokens, self.config))
            return shares[-1].loss

        rate = learning_rate(self.config, self.steps, self.total_steps)
        update = self.zero.update([partial(loss_of, micro_batch) for micro_batch in micro_batches], rate)
        self.steps += 1
        self.skipped_steps += update.skipped
        return StepMetrics(
            version=batch.version + 1,
            grad_norm=update.grad_norm,
            learning_rate=rate,
            skipped=update.skipped,
            skipped_steps=self.skipped_steps,
            num_rows=len(batch.rows),
            num_tokens=batch.num_tokens,
            row_tokens=sum(len(row.token_ids) for row in batch.rows),
            micro_batches=len(plan),
            step_s=time.monotonic() - started,
            **batch_metrics(*_over_ranks(shares), batch.num_tokens),
        )

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Logprob of every token of each row but its first, under the row's temperature: `[rows][T - 1]`.

        Every rank computes all rows, so that all make the same passes.
        """
        whole = [_all_trained(row) for row in rows]
        found: dict[int, list[float]] = {}
        for indices in self._group(range(len(rows)), [len(row.token_ids) for row in rows]):
            with torch.no_grad():
                values, _ = forward(self.zero.engine, self._collate([whole[index] for index in indices]))
            sizes = [len(rows[index].token_ids) - 1 for index in indices]
            found |= dict(zip(indices, (part.tolist() for part in values.split(sizes)), strict=True))
        return [found[index] for index in range(len(rows))]

    def _plan(self, rows: Sequence[TrainRow]) -> packing.MicroBatches:
        lengths = [len(row.token_ids) for row in rows]
        plans = packing.plan_step(
            lengths,
            ranks=dist.get_world_size(),
            hidden_size=self.model_config.hidden_size,
            group=lambda share: self._group(share, lengths),
        )
        return plans[dist.get_rank()]

    def _group(self, rows: Sequence[int], lengths: Sequence[int]) -> packing.MicroBatches:
        if self.config.packing:
            return packing.pack(rows, lengths, self.config.micro_batch_tokens)
        return packing.cut(rows, lengths, self.config.micro_batch_rows)

    def _collate(self, rows: Sequence[TrainRow]) -> MicroBatch:
        return collate(rows, packed=self.config.packing).to(self.zero.device)


def _over_ranks(shares: Sequence[Share]) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.stack([share.sums for share in shares]).sum(0)
    largest = torch.stack([share.largest for share in shares]).amax(0)
    dist.all_reduce(sums, dist.ReduceOp.SUM)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return sums, largest


def _all_trained(row: TrainRow) -> TrainRow:
    zeros = [0.0] * len(row.token_ids)
    mask = [0] + [1] * (len(row.token_ids) - 1)
    return TrainRow(
        session_id=row.session_id,
        token_ids=row.token_ids,
        loss_mask=mask,
        logprobs=zeros,
        advantages=zeros,
        temperature=row.temperature,
    )
