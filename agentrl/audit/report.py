"""What an audit found, as data and as a table."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.audit.finding import Finding, Verdict
from agentrl.types import Trajectory

KEPT = 20
"""Findings of one check that are kept; all are counted."""


class CheckResult(Struct):
    """The verdicts of one check over the whole run."""

    name: str
    invariant: int
    unit: str
    items: int = 0
    findings: int = 0
    offenders: list[Finding] = []
    notes: list[str] = []

    def take(self, verdict: Verdict) -> None:
        self.items += verdict.items
        self.findings += len(verdict.findings)
        self.offenders += verdict.findings[: KEPT - len(self.offenders)]
        self.notes += verdict.notes


class Report(Struct):
    """One audit. `first` is the first offender in the order of the stream."""

    run: str
    results: list[CheckResult] = []
    first: Finding | None = None
    trajectories: int = 0
    multi_version_trajectories: int = 0
    multi_version_calls: int = 0  # a swap reached their engine while it sampled

    @property
    def clean(self) -> bool:
        return self.first is None

    def count(self, trajectory: Trajectory) -> None:
        of_calls = [{span.version for span in call.versions} for call in trajectory.calls]
        self.trajectories += 1
        self.multi_version_trajectories += len(set().union(*of_calls)) > 1
        self.multi_version_calls += sum(len(versions) > 1 for versions in of_calls)

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {"clean": self.clean, **msgspec.structs.asdict(self)}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)

    def print(self, console: Console) -> None:
        table = Table(title=f"audit of {escape(self.run)}", title_justify="left")
        for name in ("check", "invariant", "items", "", "findings"):
            table.add_column(name, justify="right" if name in ("invariant", "items") else "left", no_wrap=True)
        for result in self.results:
            nothing = "0" if result.items else "nothing to check"
            verdict = f"[red]{result.findings:,}[/red]" if result.findings else nothing
            table.add_row(result.name, str(result.invariant), f"{result.items:,}", result.unit, verdict)
        console.print(table)
        for result in self.results:
            for note in result.notes:
                console.print(f"{result.name}: {note}", markup=False, highlight=False, soft_wrap=True)
        swapped = f"{self.multi_version_trajectories:,} of them under more than one version"
        calls = f"{self.multi_version_calls:,} calls with a swap in flight"
        console.print(f"{self.trajectories:,} trajectories, {swapped}, {calls}", highlight=False, soft_wrap=True)
        if self.first is None:
            nothing = "no finding, and no trajectory to find one in"
            console.print("clean" if self.trajectories else nothing, style="bold")
        else:
            where = f"{self.first.session_id}: " if self.first.session_id else ""
            console.print(
                f"first offender ({self.first.check}): {where}{self.first.detail}",
                style="bold red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
