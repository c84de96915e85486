"""`agentrl audit RUN`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl import plugins
from agentrl.audit.runner import Audit, AuditOptions
from agentrl.audit.stored_run import StoredRun
from agentrl.store.sql import SqlStore


def audit(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    complete: Annotated[bool, typer.Option("--complete", help="The run has ended: open groups are findings.")] = False,
    weights: Annotated[bool, typer.Option(help="Compare logprobs with the exported weights.")] = True,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest logprob difference that passes.")] = 1e-3,
    max_rows: Annotated[int, typer.Option(min=1, help="Rows compared per exported version.")] = 200,
    checker: Annotated[str, typer.Option(help="Logprob check: a name, or module:function.")] = "hf",
    clock_slack: Annotated[float, typer.Option(min=0.0, help="Seconds that hosts' clocks may differ by.")] = 0.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Prove that every trained token is the one that was sampled.

    Re-checks a run's stored trajectories: prompts and samples id for id, each token trained once, logprobs, versions
    against the engines' swap logs, the books of groups, and logprobs against exported weights. Exit status 1 when
    anything is found.

    Example: `agentrl audit runs/demo`
    """
    directory = StoredRun.open(run)
    store = SqlStore(directory.store_url, create=False)
    options = AuditOptions(
        complete=complete,
        clock_slack_s=clock_slack,
        tolerance=tolerance,
        max_rows=max_rows,
        logprob_check=(lambda: plugins.load("agentrl.logprob_checks", checker)) if weights else None,
    )
    columns = (TextColumn("auditing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as progress:
            bar = progress.add_task("", total=store.count())
            report = Audit(directory, store, options).execute(lambda: progress.advance(bar))
    finally:
        store.close()
    if json:
        typer.echo(report.to_json())
    else:
        report.print(Console(emoji=False))
    if not report.clean:
        raise typer.Exit(1)
