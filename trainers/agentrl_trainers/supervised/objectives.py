"""What each kind of run minimises over a micro-batch, and the sums from which its metrics are made.

An item is what stays together: a row, or a pair of rows of which the first was chosen and the second rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import torch

from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.algorithms.losses_supervised.bradley_terry import bradley_terry
from agentrl_trainers.algorithms.losses_supervised.cross_entropy import cross_entropy
from agentrl_trainers.algorithms.losses_supervised.dpo import dpo
from agentrl_trainers.collate import MicroBatch
from agentrl_trainers.objective import AGGREGATIONS
from agentrl_trainers.policy_loss import forward
from agentrl_trainers.settings.objective import AggregationConfig
from agentrl_trainers.supervised.config import DpoConfig

Model = Callable[..., Any]  # a PolicyModel or a ValueModel, or the engine around one


class Share(NamedTuple):
    """A micro-batch's part of the update's objective."""

    loss: torch.Tensor  # [], with gradient
    sums: torch.Tensor  # [len(names)] float64, added up over micro-batches and ranks


class SupervisedObjective(Protocol):
    rows_per_item: ClassVar[int]
    names: ClassVar[tuple[str, ...]]  # of the metrics that `Share.sums` become when divided by `count`

    def share(self, model: Model, batch: MicroBatch, of: Denominators) -> Share:
        """of: what the whole update trains. The micro-batch may be a filler without rows: then all is 0."""
        ...

    def count(self, of: Denominators) -> int: ...


class Imitation:
    """`kind = "sft"`: cross entropy of the trained tokens."""

    rows_per_item: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("nats_per_token", "entropy")

    def __init__(self, aggregation: AggregationConfig) -> None:
        self._aggregation = aggregation

    def share(self, model: Model, batch: MicroBatch, of: Denominators) -> Share:
        logprobs_N, entropy_N = forward(model, batch)
        weight_N = AGGREGATIONS[self._aggregation.name](batch.row_N, of, self._aggregation)
        return Share(cross_entropy(logprobs_N, weight_N), _sums(-logprobs_N, entropy_N))

    def count(self, of: Denominators) -> int:
        return of.tokens


class Preference:
    """`kind = "reward_model"`: the Bradley-Terry loss of scores. Of a row only the last token counts as trained."""

    rows_per_item: ClassVar[int] = 2
    names: ClassVar[tuple[str, ...]] = ("accuracy", "margin", "chosen_score", "rejected_score")

    def share(self, model: Model, batch: MicroBatch, of: Denominators) -> Share:
        scores_N = model(batch.input_ids, batch.position_ids, batch.predictors_N + 1, batch.segment_lengths)
        chosen_P, rejected_P = scores_N.view(-1, 2).unbind(1)
        loss = bradley_terry(chosen_P, rejected_P).sum() / self.count(of)
        margin_P = chosen_P - rejected_P
        return Share(loss, _sums(margin_P > 0, margin_P, chosen_P, rejected_P))

    def count(self, of: Denominators) -> int:
        return of.rows // 2


class DirectPreference:
    """`kind = "dpo"`. The rows' recorded logprobs are the reference's."""

    rows_per_item: ClassVar[int] = 2
    names: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "margin",
        "chosen_reward",
        "rejected_reward",
        "chosen_logprob",
        "rejected_logprob",
    )

    def __init__(self, config: DpoConfig) -> None:
        self._config = config

    def share(self, model: Model, batch: MicroBatch, of: Denominators) -> Share:
        logprobs_N, _ = forward(model, batch)
        chosen_P, rejected_P = pair_sums(logprobs_N, batch.row_N)
        reference_chosen_P, reference_rejected_P = pair_sums(batch.behaviour_N, batch.row_N)
        found = dpo(
            chosen_P,
            rejected_P,
            reference_chosen_P=reference_chosen_P,
            reference_rejected_P=reference_rejected_P,
            beta=self._config.beta,
            label_smoothing=self._config.label_smoothing,
        )
        margin_P = found.chosen_rewards_P - found.rejected_rewards_P
        sums = _sums(margin_P > 0, margin_P, found.chosen_rewards_P, found.rejected_rewards_P, chosen_P, rejected_P)
        return Share(found.loss_P.sum() / self.count(of), sums)

    def count(self, of: Denominators) -> int:
        return of.rows // 2


def pair_sums(values_N: torch.Tensor, row_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sums of `values_N` over each row, `[P]` of the chosen rows and `[P]` of the rejected: rows 0, 2, … and 1, 3, ….

    Every row has a trained token, so the last one tells how many rows there are.
    """
    rows = int(row_N.max()) + 1 if len(row_N) else 0
    sums_R = values_N.new_zeros(rows).index_add(0, row_N, values_N)
    chosen_P, rejected_P = sums_R.view(-1, 2).unbind(1)
    return chosen_P, rejected_P


def _sums(*values: torch.Tensor) -> torch.Tensor:
    return torch.stack([value.detach().double().sum() for value in values])
