"""`agentrl trace RUN`: where the time of a run went."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from agentrl.errors import ConfigError
from agentrl.observe.episode_time import PARTS
from agentrl.observe.trace_report import TraceReport, read_report, waits
from agentrl.observe.traces import TRACE
from agentrl.rundir import RunDirectory


def trace(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    evaluations: Annotated[bool, typer.Option("--evaluations", help="The evaluations' episodes instead.")] = False,
) -> None:
    """Say where the time of a run went: episodes, steps, and who waited for whom. Also while it goes on.

    Example: `agentrl trace runs/demo`
    """
    directory = RunDirectory(run)
    try:
        report = read_report(directory.traces, mode="eval" if evaluations else "train")
    except OSError as error:
        raise ConfigError(
            f"{run} has no traces ({error.strerror}: {error.filename}); give the directory of a run that was made with "
            "traces.enabled = true"
        ) from error
    console = Console(emoji=False, highlight=False)
    if report.episodes:
        console.print(_episodes(report))
    else:
        console.print(f"no {'evaluation' if evaluations else 'training'} episode is in the traces")
    if report.steps and not evaluations:
        console.print(_steps(report))
        for sentence in waits(report):
            console.print(sentence, soft_wrap=True)
    if report.unreadable:
        console.print(f"{report.unreadable} line(s) could not be read and were left out")
    console.print(f"open {directory.traces / TRACE} in https://ui.perfetto.dev to see it over time", soft_wrap=True)


def _episodes(report: TraceReport) -> Table:
    table = Table(title="where episodes spent their time", title_justify="left", box=None, padding=(0, 1, 0, 0))
    for name in ("", "episodes", "median s", *PARTS):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for split in report.splits():
        shares = (f"{split.shares[part]:.1%}" for part in PARTS)
        table.add_row(split.name, str(split.episodes), f"{split.median:.2f}", *shares)
    return table


def _steps(report: TraceReport) -> Table:
    title = f"{report.steps} steps, {report.step_seconds:.1f} s in all"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("phase", "s a step", "share"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    rows = [*report.phases.items()]
    if report.unaccounted >= 0.0005 * report.step_seconds:
        rows.append(("between them", report.unaccounted))
    for name, seconds in rows:
        table.add_row(name, f"{seconds / report.steps:.2f}", f"{seconds / max(report.step_seconds, 1e-9):.1%}")
    return table
