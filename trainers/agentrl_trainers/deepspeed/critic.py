"""The critic: its opinion of the states that tokens were sampled from, and its update on some rows.

It sits beside the policy on the same ranks, in an engine of its own with the same ZeRO stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from agentrl_trainers.algorithms.values import explained_variance, value_loss
from agentrl_trainers.collate import MicroBatch
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.engine import Update
from agentrl_trainers.deepspeed.layout import StepLayout
from agentrl_trainers.deepspeed.under_zero import under_zero
from agentrl_trainers.optimizers import OptimizerFactory
from agentrl_trainers.schedule import learning_rate
from agentrl_trainers.step_tokens import StepTokens
from agentrl_trainers.value_model import ValueModel, load_value_model


class CriticUpdate(NamedTuple):
    """sums: `[2]` float64, of the loss and of the clipped values, over this rank's tokens."""

    update: Update
    sums: torch.Tensor


class DeepSpeedCritic:
    """One rank's part of the critic. All ranks call every method together, with the same arguments."""

    def __init__(self, model: ValueModel, config: TrainerConfig, *, optimizer: OptimizerFactory) -> None:
        self._config = config.model_copy(update={"learning_rate": config.critic.learning_rate})
        self.model = model
        self.zero, self.layout = under_zero(model, self._config, optimizer)

    def values(self, tokens: StepTokens) -> torch.Tensor:
        """`[A]`: the value of the state before each of the step's trained tokens."""
        return self.layout.of_all_tokens(tokens, lambda batch: values_of(self.zero.engine, batch))

    def update(self, tokens: StepTokens, part: Sequence[int], step: int, total_steps: int) -> CriticUpdate:
        """One update towards "returns", not far from "values", on the rows `part` of the step.

        The loss is the mean over the trained tokens of the whole part.
        """
        num_tokens = sum(sum(tokens.rows[index].loss_mask) for index in part)
        sums = torch.zeros(2, dtype=torch.float64, device=self.zero.device)

        def loss_of(batch: MicroBatch, model: Any) -> torch.Tensor:
            loss = value_loss(
                values_of(model, batch), batch.known["values"], batch.known["returns"], self._config.critic.value_clip
            )
            sums.add_(torch.stack([loss.loss_N.detach().sum().double(), loss.clipped_N.sum().double()]))
            return loss.loss_N.sum() / num_tokens

        losses = [partial(loss_of, batch) for batch in self.layout.micro_batches(tokens, part)]
        return CriticUpdate(self.zero.update(losses, learning_rate(self._config, step, total_steps)), sums)


def load_critic(policy_path: str | Path, config: TrainerConfig, optimizer: OptimizerFactory) -> DeepSpeedCritic:
    """The critic that `[trainer.critic]` asks for, its body from the policy at `policy_path` or a model of its own."""
    path = policy_path if config.critic.model == "policy" else config.critic.model
    model = load_value_model(path, dtype=config.dtype, attention=config.attention)
    return DeepSpeedCritic(model, config, optimizer=optimizer)


def values_of(model: Any, batch: MicroBatch) -> torch.Tensor:
    """`[N]`: the values of a micro-batch's states."""
    values_N: torch.Tensor = model(batch.input_ids, batch.position_ids, batch.predictors_N, batch.segment_lengths)
    return values_N


def critic_metrics(
    updates: Sequence[CriticUpdate], tokens: StepTokens, num_tokens: int, layout: StepLayout
) -> dict[str, Any]:
    """StepMetrics' fields of the critic. num_tokens: trained tokens, as often as they were trained on. Collective."""
    sums = torch.stack([done.sums for done in updates]).sum(0)
    layout.total(sums)
    loss, clipped = (sums / num_tokens).tolist()
    return {
        "value_loss": loss,
        "value_clip_fraction": clipped,
        "explained_variance": explained_variance(tokens.vectors["values"], tokens.vectors["returns"]),
        "critic_grad_norm": max(done.update.grad_norm for done in updates),
        "critic_skipped_updates": sum(done.update.skipped for done in updates),
    }
