"""One micro-batch's share of the policy loss, and the sums from which the batch's metrics are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from agentrl_trainers.algorithms.mismatch import mismatch
from agentrl_trainers.algorithms.ppo_clip import ppo_clip
from agentrl_trainers.algorithms.token_mean import token_mean
from agentrl_trainers.collate import MicroBatch
from agentrl_trainers.config import TrainerConfig

Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]  # a PolicyModel, or the engine around one

SUMMED = ("loss", "clip_fraction", "entropy", "logprob_diff_mean", "kl_k3")
LARGEST = ("logprob_diff_max", "engine_gap_max", "ratio_max", "minus_ratio_min")


class Share(NamedTuple):
    loss: torch.Tensor  # [], of the batch's token mean, with gradient
    sums: torch.Tensor  # [len(SUMMED)] float64, over this micro-batch's trained tokens
    largest: torch.Tensor  # [len(LARGEST)] float64


def forward(model: Forward, batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies `[N]` of the micro-batch's trained tokens."""
    return model(
        batch.input_ids,
        batch.position_ids,
        batch.predictors_N,
        batch.targets_N,
        batch.temperature_N,
        batch.segment_lengths,
    )


def policy_loss(model: Forward, batch: MicroBatch, num_tokens: int, config: TrainerConfig) -> Share:
    """num_tokens: trained tokens of the whole Batch. The micro-batch may have none: then all is 0."""
    logprobs_N, entropy_N = forward(model, batch)
    clip = ppo_clip(logprobs_N, batch.behaviour_N, batch.advantages_N, low=config.clip_low, high=config.clip_high)
    gap = mismatch(logprobs_N, batch.behaviour_N)
    engine_gap = mismatch(logprobs_N[batch.on_policy_N], batch.behaviour_N[batch.on_policy_N])
    sums = (clip.loss_N.sum(), clip.clipped_N.sum(), entropy_N.sum(), gap.abs_sum, gap.k3_sum)
    largest = (gap.abs_max, engine_gap.abs_max, gap.ratio_max, -gap.ratio_min)
    return Share(token_mean(clip.loss_N, num_tokens), _detached(sums), _detached(largest))


def batch_metrics(sums: torch.Tensor, largest: torch.Tensor, num_tokens: int) -> dict[str, float]:
    """StepMetrics' fields from the sums and the maxima over all micro-batches of all ranks."""
    metrics = {name: value / num_tokens for name, value in zip(SUMMED, sums.tolist(), strict=True)}
    metrics |= dict(zip(LARGEST, largest.tolist(), strict=True))
    return metrics | {"ratio_min": -metrics.pop("minus_ratio_min")}


def _detached(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.stack([value.detach().double() for value in values])
