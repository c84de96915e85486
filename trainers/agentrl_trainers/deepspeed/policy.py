"""The policy under training: an optimizer update on some rows, and its opinion of sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from agentrl.types import TrainRow
from agentrl_trainers.algorithms.aggregation.denominators import denominators
from agentrl_trainers.collate import MicroBatch
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import tensor_parallel
from agentrl_trainers.deepspeed.engine import Update
from agentrl_trainers.deepspeed.under_zero import under_zero
from agentrl_trainers.model import PolicyModel
from agentrl_trainers.objective import Objective
from agentrl_trainers.optimizers import OptimizerFactory, by_config
from agentrl_trainers.policy_loss import Share, forward, policy_loss
from agentrl_trainers.step_tokens import StepTokens


class PolicyUpdate(NamedTuple):
    """What one update did, and the shares of this rank's micro-batches, from which metrics are made."""

    update: Update
    shares: list[Share]


class DeepSpeedPolicy:
    """One rank's part of the policy. All ranks call every method together, with the same arguments."""

    def __init__(self, model: PolicyModel, config: TrainerConfig, *, optimizer: OptimizerFactory = by_config) -> None:
        self.model_config = model.lm.config
        if config.tensor_parallel > 1:
            tensor_parallel.check(self.model_config, config.tensor_parallel)
        self._objective = Objective.of(config)
        self.zero, self.layout = under_zero(model, config, optimizer, ema=config.ema, ranks_each=config.tensor_parallel)
        if config.tensor_parallel > 1:
            tensor_parallel.complete(model, self.model_config.num_hidden_layers)

    def update(self, tokens: StepTokens, part: Sequence[int], rate: float, *, kl_coefficient: float) -> PolicyUpdate:
        """One update on the rows `part` of the step, of which this rank takes its share.

        The denominators are those of the whole part, whatever the layout. An update that is not finite leaves the
        weights as they are.
        """
        of = denominators([tokens.rows[index] for index in part])
        shares: list[Share] = []

        def loss_of(micro_batch: MicroBatch, model: Any) -> torch.Tensor:
            shares.append(policy_loss(model, micro_batch, of, self._objective, kl_coefficient=kl_coefficient))
            return shares[-1].loss

        update = self.zero.update([partial(loss_of, batch) for batch in self.layout.micro_batches(tokens, part)], rate)
        return PolicyUpdate(update, shares)

    @torch.no_grad()
    def measure(self, tokens: StepTokens, part: Sequence[int], *, kl_coefficient: float) -> PolicyUpdate:
        """What `update` would say of the rows `part`, without a gradient: nothing is changed."""
        of = denominators([tokens.rows[index] for index in part])
        shares = [
            policy_loss(self.zero.engine, batch, of, self._objective, kl_coefficient=kl_coefficient)
            for batch in self.layout.micro_batches(tokens, part)
        ]
        return PolicyUpdate(Update(0.0, skipped=False), shares)

    def token_logprobs(self, tokens: StepTokens) -> torch.Tensor:
        """`[A]` logprobs of the step's trained tokens, under the weights as they are."""
        return self.layout.of_all_tokens(tokens, lambda batch: forward(self.zero.engine, batch)[0])

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Logprob of every token of each row but its first, under the row's temperature: `[rows][T - 1]`."""
        tokens = StepTokens([_all_trained(row) for row in rows])
        found_A = self.token_logprobs(tokens)
        return [found_A[span].tolist() for span in tokens.spans]


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
