"""Takes the records of a run and gives them to every sink; keeps what the summary needs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from agentrl.observe.records import EvalRecord, StepRecord, Summary

MOVING_AVERAGE = 10
"""Steps in the moving average of success: single steps swing by ±0.1."""


class Sink(Protocol):
    """Somewhere that records go. Must not raise for a record it cannot show."""

    def stepped(self, record: StepRecord) -> None: ...

    def evaluated(self, record: EvalRecord) -> None: ...

    def close(self) -> None: ...


class Recorder:
    """One per run. Fills in times and moving averages, which only it knows."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.steps: list[StepRecord] = []
        self.evaluations: list[EvalRecord] = []
        self.dropped_groups: Mapping[str, int] = {}  # by reason, over the whole run; the loop hands it in at its end
        self._sinks = sinks
        self._started = self._last = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def stepped(self, record: StepRecord) -> None:
        now = time.monotonic()
        record.elapsed_s, record.step_s, self._last = now - self._started, now - self._last, now
        record.training_s = record.step_s + (self.steps[-1].training_s if self.steps else 0.0)
        self.steps.append(record)
        window = [past.success for past in self.steps[-MOVING_AVERAGE:]]
        record.success_average = sum(window) / len(window)
        for sink in self._sinks:
            sink.stepped(record)

    def evaluated(self, record: EvalRecord) -> None:
        self._last = time.monotonic()
        record.elapsed_s = self.elapsed_s
        self.evaluations.append(record)
        for sink in self._sinks:
            sink.evaluated(record)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    def summary(self, *, ended: str, error: str | None = None) -> Summary:
        """`success_start` is of version 0, `success_end` of a later one; None when it was not evaluated."""
        start = next((record.success for record in self.evaluations if record.version == 0), None)
        end = next((record.success for record in reversed(self.evaluations) if record.version > 0), None)
        dropped_tokens: Counter[str] = Counter()
        for record in self.steps:
            dropped_tokens.update(record.dropped_tokens)
        return Summary(
            ended=ended,
            steps=len(self.steps),
            wall_s=round(self.elapsed_s, 3),
            success_start=start,
            success_end=end,
            trajectories=sum(record.trajectories for record in self.steps),
            multi_version_trajectories=sum(record.multi_version_trajectories for record in self.steps),
            staleness_max=max((lag for record in self.steps for lag in record.staleness), default=0),
            dropped={f"tokens.{reason}": count for reason, count in sorted(dropped_tokens.items())}
            | {f"groups.{reason}": count for reason, count in sorted(self.dropped_groups.items())},
            error=error,
        )
