"""Streams a run through every check and gathers the verdicts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from agentrl.audit.books import Books, BooksCheck
from agentrl.audit.finding import Finding, Subject, TrajectoryCheck, Verdict
from agentrl.audit.identity import IDENTITY
from agentrl.audit.logprobs import LOGPROBS
from agentrl.audit.once import ONCE
from agentrl.audit.report import CheckResult, Report
from agentrl.audit.staleness import STALENESS
from agentrl.audit.stored_run import StoredRun
from agentrl.audit.swap_log import SwapLog, swap_log_check
from agentrl.audit.trained_once import GROUPS, SETTLEMENTS
from agentrl.audit.versions import VERSIONS
from agentrl.audit.weights import NAME as WEIGHTS
from agentrl.audit.weights import LogprobCheck, RowSampler
from agentrl.audit.weights import examine as examine_weights
from agentrl.errors import StoreError
from agentrl.store.base import TrajectoryStore

STORED = "stored"
BOOKS_CHECKS: tuple[BooksCheck, ...] = (SETTLEMENTS, GROUPS, STALENESS)


@dataclass(frozen=True)
class AuditOptions:
    """How strictly to look."""

    complete: bool = False  # the run has ended: what is still open is a finding
    clock_slack_s: float = 0.0  # how far the clocks of gateway and engine hosts may be apart
    tolerance: float = 1e-3  # of recorded logprobs against a forward pass
    max_rows: int = 200  # drawn per exported version
    logprob_check: Callable[[], LogprobCheck] | None = None  # loaded only when there are weights; None leaves it out


@dataclass
class Audit:
    """One audit of one run."""

    run: StoredRun
    store: TrajectoryStore
    options: AuditOptions = field(default_factory=AuditOptions)

    def __post_init__(self) -> None:
        self._log = SwapLog(self.store.swaps())
        slack_s = self.options.clock_slack_s
        self._checks: tuple[TrajectoryCheck, ...] = (
            IDENTITY, ONCE, LOGPROBS, VERSIONS, swap_log_check(self._log, slack_s=slack_s),
        )  # fmt: skip
        self._books = Books(
            settlements=list(self.store.settlements()),
            groups={group.group_id: group for group in self.store.groups()},
            complete=self.options.complete or self.run.ended,
            max_lag=self.run.max_lag,
        )
        self._sampler = RowSampler(sorted(self.run.weights), self._log, max_rows=self.options.max_rows)
        self._report = Report(run=str(self.run.path))

    def execute(self, on_trajectory: Callable[[], None] = lambda: None) -> Report:
        """Raises StoreError when the store cannot be read at all; one damaged trajectory is a finding."""
        results = [CheckResult(STORED, invariant=7, unit="trajectories")]
        results += [CheckResult(check.name, check.invariant, check.unit) for check in self._checks]
        self._report.results = results
        readable = self._stream(results, on_trajectory)
        for check in BOOKS_CHECKS:
            result = CheckResult(check.name, check.invariant, check.unit)
            results.append(result)
            if readable:
                self._take(result, check.examine(self._books))
            else:
                result.notes.append("not checked: a trajectory could not be read")
        results.append(self._weights(readable))
        return self._report

    def _stream(self, results: list[CheckResult], on_trajectory: Callable[[], None]) -> bool:
        try:
            for trajectory in self.store.iterate():
                subject = Subject(trajectory)
                self._take(results[0], Verdict(items=1))
                for check, result in zip(self._checks, results[1:], strict=True):
                    self._take(result, check.examine(subject))
                self._books.add(trajectory)
                self._sampler.offer(subject)
                self._report.count(trajectory)
                on_trajectory()
        except StoreError as error:
            self._take(results[0], Verdict(items=1, findings=[Finding(STORED, "", str(error))]))
            return False
        if not self._report.trajectories and self._books.complete:
            self._take(
                results[0], Verdict(findings=[Finding(STORED, "", "the run has ended and stored no trajectory")])
            )
        return True

    def _weights(self, readable: bool) -> CheckResult:
        result = CheckResult(WEIGHTS, invariant=3, unit="sampled tokens")
        if self.options.logprob_check is None or not readable:
            result.notes.append("not checked: left out" if readable else "not checked: a trajectory could not be read")
        elif not self.run.weights:
            result.notes.append("no exported weights in checkpoints/, and the initial model is not here")
        else:
            verdict = examine_weights(
                self._sampler,
                self.run.weights,
                lambda session_id: Subject(self.store.get(session_id)),
                self._log,
                self.options.logprob_check(),
                tolerance=self.options.tolerance,
            )
            self._take(result, verdict)
        return result

    def _take(self, result: CheckResult, verdict: Verdict) -> None:
        result.take(verdict)
        if verdict.findings and self._report.first is None:
            self._report.first = verdict.findings[0]
