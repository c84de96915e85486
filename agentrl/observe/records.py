"""What a run says of itself. Made by the loop, taken by every sink (file, TensorBoard, terminal)."""

from __future__ import annotations

from msgspec import Struct

from agentrl.observe.faults import FaultRecord


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
    phases: dict[str, float]  # seconds: wait, batch, train, publish, checkpoint
    swap: dict[str, float]  # seconds of the slowest engine per part of the swap, then each engine's: "engine-0.pause"
    trainer: dict[str, float]
    failed_episodes: dict[str, int] = {}  # stop reason -> episodes that a failure ended, since the run began
    retried_episodes: dict[str, int] = {}  # of these, how many were played again
    refilled_groups: int = 0  # without signal, that others took the place of, since the run began
    cut_groups: int = 0  # that steps did not wait for, since the run began
    cut_episodes: int = 0  # that their groups did not wait for, since the run began
    incomplete_groups: dict[str, int] = {}  # with attempts that were "late" or "failed" -> groups, since the run began
    task_sources: dict[str, dict[str, float]] = {}  # of a mix: tasks drawn, present share, how much can be learnt from
    concurrency: dict[str, float] = {}  # of the worker heard last: episodes under way, their limit, the engines' load
    reward_parts: dict[str, dict[str, float]] = {}  # part of the reward -> its counts and seconds, since the run began
    checkpoint: dict[str, float] = {}  # of a step that saved one: bytes, and seconds of its parts
    faults: list[FaultRecord] = []  # that were over since the step before; the recorder fills it in
    failed_evaluations: dict[str, int] = {}  # reason -> evaluations without a result, since the last start
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
    seconds: float = 0.0  # that it took
    elapsed_s: float = 0.0


class ResumeRecord(Struct, kw_only=True):
    """The run was taken up again after its driver had ended, at version `version`."""

    version: int
    checkpoint: int | None  # that was restored; None is the initial model
    replayed: int  # batches that were trained again from there
    adopted_groups: int  # admitted before, and neither trained nor dropped yet
    sealed_sessions: int  # that episodes of the dead driver had left open
    sealed_tokens: int  # that these had sampled
    elapsed_s: float = 0.0  # since the run began, the time in between left out; the recorder fills it in


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
    failed_episodes: dict[str, int] = {}  # stop reason -> episodes
    retried_episodes: dict[str, int] = {}
    reward_parts: dict[str, dict[str, float]] = {}  # part of the reward -> its counts and seconds
    failed_evaluations: dict[str, int] = {}  # reason -> evaluations without a result, since the last start
    resumes: int = 0  # how often the run was taken up again
    faults: list[FaultRecord] = []  # parts that died or hung, over the whole run
    traces: dict[str, int] = {}  # of steps and evaluations since the last start: written, left_out, failed
    error: str | None = None
