"""The parts of the objective that a run names, put together once: loss, correction, divergence, aggregation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from agentrl import plugins
from agentrl_trainers.algorithms.aggregation.constant import constant
from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.algorithms.aggregation.sequence_mean import sequence_mean
from agentrl_trainers.algorithms.aggregation.token_mean import token_mean
from agentrl_trainers.algorithms.correction import Correction, correct
from agentrl_trainers.algorithms.foreign_loss import checked
from agentrl_trainers.algorithms.kl.estimators import ESTIMATORS
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.settings.objective import BUILT_IN_LOSSES, LossConfig

LossFunction = Callable[[SampledTokens, LossConfig], TokenLoss]

AGGREGATIONS = {"token_mean": token_mean, "sequence_mean": sequence_mean, "constant": constant}


@dataclass(frozen=True)
class Objective:
    """`loss * correction + kl - entropy`, each of a token, summed with the weights of the aggregation."""

    config: TrainerConfig
    loss: LossFunction
    foreign: bool = False  # the loss is the user's own

    @classmethod
    def of(cls, config: TrainerConfig) -> Self:
        """Raises ConfigError when there is no loss of that name."""
        loss = plugins.load("agentrl.policy_losses", config.loss.name)
        return cls(config, loss, foreign=config.loss.name not in BUILT_IN_LOSSES)

    def __call__(self, tokens: SampledTokens, of: Denominators, kl_coefficient: float) -> ObjectiveParts:
        loss = self._loss(tokens)
        corrected = correct(tokens, self.config.correction)
        total_N = loss.loss_N * corrected.weight_N
        kl_N = self._kl(tokens)
        if kl_N is not None and self.config.kl.where == "loss":
            total_N = total_N + kl_coefficient * kl_N
        if self.config.entropy_bonus:
            total_N = total_N - self.config.entropy_bonus * tokens.entropy_N
        weight_N = AGGREGATIONS[self.config.aggregation.name](tokens.row_N, of, self.config.aggregation)
        share = (total_N * weight_N).sum()
        return ObjectiveParts(share, loss.clipped_N, corrected, kl_N)

    def _loss(self, tokens: SampledTokens) -> TokenLoss:
        """Of no tokens a loss of the user's own is not asked: a mean over nothing would be NaN."""
        if not self.foreign:
            return self.loss(tokens, self.config.loss)
        if not len(tokens.logprobs_N):
            return TokenLoss(tokens.logprobs_N, torch.zeros_like(tokens.logprobs_N, dtype=torch.bool))
        return checked(self.loss(tokens, self.config.loss), tokens, self.config.loss.name)

    def _kl(self, tokens: SampledTokens) -> torch.Tensor | None:
        if tokens.reference_N is None:
            return None
        return ESTIMATORS[self.config.kl.estimator](tokens.logprobs_N, tokens.reference_N)


@dataclass(frozen=True)
class ObjectiveParts:
    """One micro-batch's share `[]` of the objective, with gradient, and what it was made of, `[N]` each."""

    share: torch.Tensor
    clipped_N: torch.Tensor
    correction: Correction
    kl_N: torch.Tensor | None
