"""What a step leaves behind for its trace. Made by the loop, taken by the trace's writer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from agentrl.observe.timing import Phase
from agentrl.types import Task, Trajectory


class EpisodeTrace(Struct, frozen=True, kw_only=True):
    """One attempt, and what became of it."""

    trajectory: Trajectory
    outcome: str  # "trained", or why not
    trained_tokens: int = 0
    max_lag: int | None = None  # versions between the oldest of these and the one that was trained


class GroupTrace(Struct, frozen=True, kw_only=True):
    """The attempts of a task. Times are unix seconds; None is unknown."""

    group_id: str
    task: Task
    outcome: str
    episodes: Sequence[EpisodeTrace]
    admitted_at: float | None = None
    played_at: float | None = None  # its last attempt ended
    scored_at: float | None = None
    admitted_at_version: int = 0


class StepTrace(Struct, frozen=True, kw_only=True):
    """One optimizer step, with the groups that it trained and those that were given up since the one before."""

    step: int
    phases: Sequence[Phase]
    groups: Sequence[GroupTrace]
    numbers: Mapping[str, float] = {}  # more to know of it, by name


class EvaluationTrace(Struct, frozen=True, kw_only=True):
    """One evaluation: its groups have one attempt each."""

    version: int
    start: float  # unix seconds
    end: float
    outcome: str
    groups: Sequence[GroupTrace]
