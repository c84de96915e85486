"""What an environment costs the workers, and whether that is much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msgspec import Struct

from agentrl.env.check.finding import Finding, warning
from agentrl.env.check.records import Recording

_CPU_MS = 250.0  # of a step; 16 cores serve 64 such steps a second
_START_MS = 10_000.0


class Cost(Struct, frozen=True):
    """Milliseconds of one method over all its calls; p99 is the largest of fewer than 100."""

    method: str
    calls: int
    wall_p50_ms: float
    wall_p99_ms: float
    cpu_p50_ms: float
    cpu_p99_ms: float


def costs(recording: Recording) -> list[Cost]:
    """Of the episodes played alone, which nothing slowed down on purpose."""
    found: list[Cost] = []
    for method in ("__init__", "reset", "step", "run", "grade", "close"):
        calls = [call for episode in recording.of("alone") for call in episode.calls if call.method == method]
        if calls:
            wall, cpu = [call.wall_ms for call in calls], [call.cpu_ms for call in calls]
            times = [quantile(of, share) for of in (wall, cpu) for share in (0.5, 0.99)]
            found.append(Cost(method, len(calls), *times))
    return found


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def check(recording: Recording) -> Iterator[Finding]:
    for cost in costs(recording):
        if cost.cpu_p50_ms >= _CPU_MS:
            yield warning(
                "slow",
                f"{cost.method} takes {cost.cpu_p50_ms:.0f} ms of processor time at the median of {cost.calls} calls",
                "prepare once per process what does not change from episode to episode",
                recording.place(cost.method),
            )
    subject = recording.subject
    if subject is not None and subject.import_ms + subject.make_ms > _START_MS:
        yield warning(
            "slow-start",
            f"importing and making the first one takes {(subject.import_ms + subject.make_ms) / 1000:.1f} s",
            "import heavy libraries where they are used",
            recording.place("class"),
        )
