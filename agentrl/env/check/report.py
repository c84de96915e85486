"""The findings as a table and as JSON."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.env.check.analysis import findings
from agentrl.env.check.checks.cost import Cost, costs
from agentrl.env.check.checks.rendering import Render
from agentrl.env.check.finding import Finding
from agentrl.env.check.records import Recording


class Report(Struct, frozen=True):
    """One check of one environment."""

    env_id: str
    findings: list[Finding]
    costs: list[Cost]
    episodes: int
    steps: int
    tasks: int
    reference: str  # where the environment's own solution is; "" for none
    start_ms: float  # importing and making the first one

    @classmethod
    def of(cls, recording: Recording, render: Render | None = None) -> Report:
        subject = recording.subject
        return cls(
            env_id=recording.env_id,
            findings=findings(recording, render),
            costs=costs(recording),
            episodes=len(recording.episodes),
            steps=sum(len(episode.steps) for episode in recording.episodes),
            tasks=len({episode.task_id for episode in recording.episodes}),
            reference="" if subject is None else subject.reference,
            start_ms=0.0 if subject is None else subject.import_ms + subject.make_ms,
        )

    @property
    def errors(self) -> int:
        return sum(finding.severity == "error" for finding in self.findings)

    @property
    def warnings(self) -> int:
        return len(self.findings) - self.errors

    def to_json(self) -> bytes:
        fields: dict[str, Any] = {"errors": self.errors, "warnings": self.warnings, **msgspec.structs.asdict(self)}
        return msgspec.json.format(msgspec.json.encode(fields), indent=2)

    def print(self, console: Console) -> None:
        for finding in self.findings:
            colour = "red" if finding.severity == "error" else "yellow"
            where = "" if finding.place is None else f" {_short(finding.place.file)}:{finding.place.line}"
            console.print(
                f"[{colour}]{finding.severity}[/{colour}] [bold]{finding.code}[/bold]{escape(where)}", soft_wrap=True
            )
            console.print(f"    {escape(finding.message)}", highlight=False, soft_wrap=True)
            console.print(f"    fix: {escape(finding.fix)}", highlight=False, soft_wrap=True)
        if self.costs:
            console.print(self._cost_table())
        played = f"{self.episodes} episodes of {self.tasks} tasks, {self.steps} steps"
        solution = "with its reference solution" if self.reference else "it has no reference solution"
        console.print(f"{escape(self.env_id)}: {played}; {solution}", highlight=False, soft_wrap=True)
        if self.findings:
            told = f"{_counted(self.errors, 'error')}, {_counted(self.warnings, 'warning')}"
            console.print(f"{told}; docs/env-check.md explains each", style="bold", highlight=False, soft_wrap=True)
        else:
            console.print("nothing found", style="bold green")

    def _cost_table(self) -> Table:
        table = Table(box=None, title="cost of a call", title_justify="left")
        table.add_column("ms")
        for name in ("calls", "wall p50", "wall p99", "CPU p50", "CPU p99"):
            table.add_column(name, justify="right")
        for cost in self.costs:
            times = (cost.wall_p50_ms, cost.wall_p99_ms, cost.cpu_p50_ms, cost.cpu_p99_ms)
            table.add_row(cost.method, str(cost.calls), *(f"{time:.2f}" for time in times))
        table.add_row("first start", "1", f"{self.start_ms:.2f}", "", "", "")
        return table


def _counted(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"


def _short(file: str) -> str:
    """Relative to the working directory where it is below it."""
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative
