"""One micro-batch's share of the objective, and the sums from which the step's metrics are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from agentrl_trainers.algorithms.aggregation.denominators import Denominators
from agentrl_trainers.algorithms.mismatch import mismatch
from agentrl_trainers.algorithms.sampled import SampledTokens
from agentrl_trainers.collate import MicroBatch
from agentrl_trainers.objective import Objective

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # a PolicyModel, or the engine around one

SUMMED = ("clip_fraction", "entropy", "logprob_diff_mean", "kl_k3", "corrected_fraction", "reference_kl")
LARGEST = ("logprob_diff_max", "engine_gap_max", "ratio_max", "minus_ratio_min")


class Share(NamedTuple):
    loss: torch.Tensor  # [], of the update's objective, with gradient
    value: torch.Tensor  # [] float64, the same without
    sums: torch.Tensor  # [len(SUMMED)] float64, over this micro-batch's trained tokens
    largest: torch.Tensor  # [len(LARGEST)] float64


def forward(model: Forward, batch: MicroBatch, *, entropy_gradient: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies `[N]` of the micro-batch's trained tokens."""
    return model(
        batch.input_ids,
        batch.position_ids,
        batch.predictors_N,
        batch.targets_N,
        batch.temperature_N,
        batch.segment_lengths,
        entropy_gradient,
    )


def policy_loss(
    model: Forward, batch: MicroBatch, of: Denominators, objective: Objective, *, kl_coefficient: float = 0.0
) -> Share:
    """of: what the whole update trains. The micro-batch may have no trained token: then all is 0."""
    tokens = sampled_tokens(model, batch, objective)
    parts = objective(tokens, of, kl_coefficient)
    gap = mismatch(tokens.proximal_N, tokens.behaviour_N)
    engine_gap = mismatch(tokens.proximal_N[batch.on_policy_N], tokens.behaviour_N[batch.on_policy_N])
    zero = tokens.entropy_N.new_zeros(())
    sums = (
        parts.clipped_N.sum(),
        tokens.entropy_N.sum(),
        gap.abs_sum,
        gap.k3_sum,
        parts.correction.outside_N.sum(),
        zero if parts.kl_N is None else parts.kl_N.sum(),
    )
    largest = (gap.abs_max, engine_gap.abs_max, gap.ratio_max, -gap.ratio_min)
    return Share(parts.share, parts.share.detach().double(), _detached(sums), _detached(largest))


def sampled_tokens(model: Forward, batch: MicroBatch, objective: Objective) -> SampledTokens:
    """One forward pass. Without an earlier one, the proximal policy is this very one."""
    config = objective.config
    logprobs_N, entropy_N = forward(model, batch, entropy_gradient=config.entropy_bonus > 0)
    proximal_N = batch.known.get("proximal", logprobs_N.detach())
    return SampledTokens(
        logprobs_N=logprobs_N,
        entropy_N=entropy_N,
        behaviour_N=batch.behaviour_N,
        proximal_N=proximal_N,
        old_N=batch.behaviour_N if config.loss.old_policy == "behaviour" else proximal_N,
        advantages_N=batch.advantages_N,
        row_N=batch.row_N,
        call_N=batch.call_N,
        reference_N=batch.known.get("reference"),
    )


def step_metrics(sums: torch.Tensor, largest: torch.Tensor, num_tokens: int) -> dict[str, float]:
    """StepMetrics' fields from the sums and the maxima over all micro-batches of all ranks and updates.

    num_tokens: trained tokens, as often as they were trained on.
    """
    metrics = {name: value / num_tokens for name, value in zip(SUMMED, sums.tolist(), strict=True)}
    metrics |= dict(zip(LARGEST, largest.tolist(), strict=True))
    return metrics | {"ratio_min": -metrics.pop("minus_ratio_min")}


def _detached(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.stack([value.detach().double() for value in values])
