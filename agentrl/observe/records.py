"""What a run says of itself. Made by the loop, taken by every sink (file, TensorBoard, terminal)."""

from __future__ import annotations

from msgspec import Struct


class StepRecord(Struct, kw_only=True):
    """One optimizer step; `step` k produced version k. Seconds are wall clock."""

    step: int
    reward: float
    success: float
    trajectories: int
    missing_rewards: int
    multi_version_trajectories: int
    no_signal_groups: int
    rows: int
    trained_tokens: int
    sampled_tokens: int
    staleness: dict[int, int]  # lag in versions -> trained tokens
    dropped_tokens: dict[str, int]
    dropped_groups: dict[str, int]  # since the run began
    groups_under_way: int
    phases: dict[str, float]  # seconds: wait, batch, train, publish, export
    swap: dict[str, float]  # seconds of the slowest engine per part of the swap
    trainer: dict[str, float]
    elapsed_s: float = 0.0  # since the run began; the recorder fills it in
    step_s: float = 0.0  # since the step before; the recorder fills it in
    training_s: float = 0.0  # of all steps so far; the recorder fills it in
    success_average: float = 0.0  # moving average; the recorder fills it in


class EvalRecord(Struct, kw_only=True):
    """One evaluation on held-out tasks, under one version."""

    version: int
    tasks: int
    missing: int  # episodes without a reward: left out of both means
    success: float
    reward: float
    elapsed_s: float = 0.0


class Summary(Struct, kw_only=True):
    """`summary.json`: what is left to say when a run has ended."""

    ended: str  # "done", "interrupted" or "failed"
    steps: int
    wall_s: float
    success_start: float | None
    success_end: float | None
    trajectories: int  # of the groups that steps took; what of them got no gradient is in `dropped`
    multi_version_trajectories: int
    staleness_max: int
    dropped: dict[str, int]  # reason -> sampled tokens (tokens.*) and groups (groups.*) without gradient
    error: str | None = None
