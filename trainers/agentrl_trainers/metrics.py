"""What one optimizer step says of itself, the same numbers on every rank and for every layout."""

from __future__ import annotations

from msgspec import Struct


class StepMetrics(Struct, frozen=True, kw_only=True):
    """Made by every trainer rank, taken by the control loop's log. Means are over the trained tokens of all ranks."""

    version: int  # that the step made
    loss: float  # token mean
    grad_norm: float  # global L2 norm before clipping; inf when it was not finite
    learning_rate: float  # that this update was made with
    skipped: bool  # loss or gradient was not finite: the weights are unchanged
    skipped_steps: int  # so far in this process
    num_rows: int
    num_tokens: int  # trained
    row_tokens: int  # trained or not
    clip_fraction: float  # tokens whose gradient the ratio bounds took away
    ratio_min: float
    ratio_max: float
    logprob_diff_mean: float  # |trainer - behaviour policy|: staleness and engine gap together
    logprob_diff_max: float
    engine_gap_max: float  # the same where the trained weights themselves sampled: rounding, or something is wrong
    kl_k3: float  # estimate of KL(behaviour || trainer)
    entropy: float  # of the trainer's distribution, nats
    micro_batches: int  # per rank
    step_s: float
