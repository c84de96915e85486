"""What an evaluation is made of: finished episodes, what they say of a task, and what of all tasks."""

from __future__ import annotations

from msgspec import Struct

from agentrl.types import StopReason


class EpisodeResult(Struct, frozen=True, kw_only=True):
    """One finished episode: a line of `episodes.jsonl`. Written by the runner, read by a resume and by the report."""

    task_id: str
    sample: int  # 0 … samples - 1
    session_id: str  # its trajectory in the store; "" when no session was opened
    reward: float | None  # None is missing: the episode failed, or nothing scored it
    stop_reason: StopReason
    turns: int
    error: str | None = None


class TaskResult(Struct, frozen=True, kw_only=True):
    """All episodes of one task."""

    task_id: str
    samples: int  # with a reward
    missing: int
    successes: int
    mean_reward: float | None  # over the samples; None when there are none
    stop_reasons: dict[str, int]


class Interval(Struct, frozen=True):
    """A mean and its 95 % confidence interval; None where the data give none."""

    mean: float
    low: float | None
    high: float | None


class EvaluationSummary(Struct, frozen=True, kw_only=True):
    """`summary.json` of an evaluation."""

    tasks: int  # with at least one reward
    episodes: int  # with a reward
    missing: dict[str, int]  # stop reason, or no_reward -> episodes without one; never failures of the policy
    reward: Interval | None
    success: Interval | None
    pass_at: dict[int, float]  # k -> pass@k, over the tasks with at least k rewards
    turns: float  # mean of an episode with a reward
