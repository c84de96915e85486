"""Takes the records of a run and gives them to every sink; keeps what the summary needs."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from agentrl.observe.faults import FaultRecord
from agentrl.observe.history import History
from agentrl.observe.records import EvalRecord, ResumeRecord, StepRecord, Summary

MOVING_AVERAGE = 10
"""Steps in the moving average of success: single steps swing by ±0.1."""


class Sink(Protocol):
    """Somewhere that the records of a kind of run go. Must not raise for a record it cannot show."""

    def stepped(self, record: Any) -> None: ...

    def evaluated(self, record: Any) -> None: ...

    def resumed(self, record: Any) -> None: ...

    def evaluation_failed(self, version: int, reason: str) -> None: ...

    def close(self) -> None: ...


class Timed(Protocol):
    """What every kind of run's step record has."""

    elapsed_s: float
    step_s: float
    training_s: float


class TimedEvaluation(Protocol):
    elapsed_s: float


StepT = TypeVar("StepT", bound=Timed)
EvalT = TypeVar("EvalT", bound=TimedEvaluation)


class RunRecorder(ABC, Generic[StepT, EvalT]):
    """One per run. Fills in times and moving averages, which only it knows."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.steps: list[StepT] = []
        self.evaluations: list[EvalT] = []
        self._sinks = sinks
        self._started = self._last = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def stepped(self, record: StepT) -> None:
        now = time.monotonic()
        record.elapsed_s, record.step_s, self._last = now - self._started, now - self._last, now
        record.training_s = record.step_s + (self.steps[-1].training_s if self.steps else 0.0)
        self.steps.append(record)
        self._average(record)
        for sink in self._sinks:
            sink.stepped(record)

    def evaluated(self, record: EvalT, *, beside: bool = False) -> None:
        """`beside` training: then its time is none that steps did not have."""
        if not beside:
            self._last = time.monotonic()
        record.elapsed_s = self.elapsed_s
        self.evaluations.append(record)
        for sink in self._sinks:
            sink.evaluated(record)

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()

    @abstractmethod
    def _average(self, record: StepT) -> None:
        """Sets the record's moving average; it is the last of `steps`."""


class Recorder(RunRecorder[StepRecord, EvalRecord]):
    """Of a run of reinforcement learning."""

    def __init__(self, sinks: Sequence[Sink], history: History | None = None) -> None:
        """`history`: of the run's earlier starts. It is not told to the sinks again."""
        super().__init__(sinks)
        self.dropped_groups: Mapping[str, int] = {}  # by reason, over the whole run; the loop hands it in at its end
        self.traces: Mapping[str, int] = {}  # what became of the steps' traces since this start; the run hands it in
        self.failed_evaluations: Counter[str] = Counter()  # by reason, since this start
        self.resumes: list[ResumeRecord] = []
        self.faults: list[FaultRecord] = []
        self._told_faults = 0  # of these, how many are in a step's record
        if history is not None:
            self.steps, self.evaluations = list(history.steps), list(history.evaluations)
            self.resumes = list(history.resumes)
            self.faults = [fault for step in history.steps for fault in step.faults]
            self._told_faults = len(self.faults)
            self._started -= history.elapsed_s

    def stepped(self, record: StepRecord) -> None:
        record.failed_evaluations = dict(self.failed_evaluations)
        record.faults, self._told_faults = self.faults[self._told_faults :], len(self.faults)
        super().stepped(record)

    def faulted(self, record: FaultRecord) -> None:
        """A part died and is back, or was given up; the next step's record tells."""
        record.elapsed_s = self.elapsed_s
        self.faults.append(record)

    def resumed(self, record: ResumeRecord) -> None:
        self._last = time.monotonic()
        record.elapsed_s = self.elapsed_s
        self.resumes.append(record)
        for sink in self._sinks:
            sink.resumed(record)

    def evaluation_failed(self, version: int, reason: str) -> None:
        """There is no result for this version."""
        self.failed_evaluations[reason] += 1
        for sink in self._sinks:
            sink.evaluation_failed(version, reason)

    def _average(self, record: StepRecord) -> None:
        window = [past.success for past in self.steps[-MOVING_AVERAGE:]]
        record.success_average = sum(window) / len(window)

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
            failed_episodes=self.steps[-1].failed_episodes if self.steps else {},
            retried_episodes=self.steps[-1].retried_episodes if self.steps else {},
            reward_parts=self.steps[-1].reward_parts if self.steps else {},
            failed_evaluations=dict(self.failed_evaluations),
            resumes=len(self.resumes),
            faults=self.faults,
            traces=dict(self.traces),
            error=error,
        )
