"""What one optimizer step says of itself, the same numbers on every rank and for every layout."""

from __future__ import annotations

from msgspec import Struct


class StepMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Made by every trainer rank, taken by the control loop's log. Means are over the trained tokens of all ranks.

    What has a default is left out of the log where it does not apply.
    """

    version: int  # that the step made
    loss: float  # the objective, a mean over the updates
    grad_norm: float  # global L2 norm before clipping, the largest of the updates; inf when it was not finite
    learning_rate: float  # that this update was made with
    skipped: bool  # no update was made, because loss or gradient was not finite: the weights are unchanged
    skipped_steps: int  # so far in this process
    updates: int
    skipped_updates: int  # of these
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
    corrected_fraction: float  # tokens whose ratio was outside the bounds of `[trainer.correction]`
    reference_kl: float  # estimate of KL(policy || reference); 0 without a reference
    kl_coefficient: float  # weight of that divergence in this step
    entropy: float  # of the trainer's distribution, nats
    micro_batches: int  # per rank, over all updates
    step_s: float
    peak_memory_bytes: int = 0  # of the rank that held most: allocated on the GPU, or resident on the host
    untrained_sessions: tuple[str, ...] = ()  # whose rows were only in skipped updates, or warmed up the critic
    critic_warmup: bool = False  # the critic was trained alone: the policy's weights are unchanged
    value_loss: float | None = None  # the critic's, a mean over its updates; None without one, and so below
    value_clip_fraction: float | None = None  # values whose gradient the clipping took away
    explained_variance: float | None = None  # of the returns, by the values before the updates: 1 is all, 0 none
    critic_grad_norm: float | None = None  # as `grad_norm`
    critic_skipped_updates: int | None = None  # not made, because loss or gradient was not finite
