"""What the figures of the runs say. Pure: seconds, counts and shares in, ratios out.

Steady state throughout: from the end of the warm steps to the end of the last one, so neither the first groups' wait
nor the last ones' end counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Played(Struct, kw_only=True):
    """One run's window. Seconds are wall clock; `phases` are the driver's, summed over the window's steps."""

    seconds: float
    groups: int
    steps: int = 0  # 0 where nothing was trained
    phases: dict[str, float] = {}
    engine_busy_s: float = 0.0  # with at least one sequence
    sequences: float = 0.0  # at the engine, on average
    turns: int = 0
    tokens: int = 0  # sampled
    reprefilled_tokens: int = 0  # whose KV cache was built again after a swap
    staleness: dict[str, int] = {}  # lag -> trained tokens
    dropped_tokens: dict[str, int] = {}
    cpu_s: dict[str, float] = {}
    rss_mib: dict[str, float] = {}
    lag_p99_ms: float = 0.0  # of the driver's event loop

    @property
    def groups_per_hour(self) -> float:
        return self.groups / self.seconds * 3600


class Bound(Struct, frozen=True, kw_only=True):
    """Seconds that a step's groups take the rollouts alone, and a step the trainer alone. No loop is faster."""

    rollout_s: float
    train_s: float

    @property
    def step_s(self) -> float:
        return max(self.rollout_s, self.train_s)


class Compared(Struct, frozen=True, kw_only=True):
    """One mode beside the bound and beside the synchronous loop."""

    step_s: float
    groups_per_hour: float
    bound_ratio: float  # 1 is the bound
    gain_over_sync: float
    trainer_waits: float  # share of the time: for groups
    engines_idle: float  # share of the time: without a sequence


def bound_of(sampled: Played, sync: Played, *, groups_per_step: int) -> Bound:
    """From the run that only samples, and from the synchronous one, in which the trainer steps while nothing else runs.

    train_s is the trainer's step and nothing beside it: neither the batch's making nor the publication.
    """
    return Bound(
        rollout_s=sampled.seconds / sampled.groups * groups_per_step, train_s=sync.phases["train"] / sync.steps
    )


def compared(played: Played, sync: Played, bound: Bound) -> Compared:
    step_s = played.seconds / played.steps
    return Compared(
        step_s=step_s,
        groups_per_hour=played.groups_per_hour,
        bound_ratio=bound.step_s / step_s,
        gain_over_sync=played.groups_per_hour / sync.groups_per_hour,
        trainer_waits=played.phases["wait"] / played.seconds,
        engines_idle=1 - played.engine_busy_s / played.seconds,
    )


def cpu_ms_per_turn(played: Played, of: tuple[str, ...] = ("driver", "gateway")) -> float:
    """Processor time of the control loop's own processes for one model call with what comes before and after it."""
    return 1000 * sum(played.cpu_s[name] for name in of) / played.turns


def shares(counts: Mapping[str, int]) -> dict[str, float]:
    """Of each key, in order; empty where there is nothing."""
    total = sum(counts.values())
    return {key: count / total for key, count in sorted(counts.items()) if total}
