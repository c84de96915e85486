"""`agentrl reward check URL`: does a reward service keep its contract, and how fast is it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.errors import ConfigError
from agentrl.reward.check.finding import Report
from agentrl.reward.check.items import items_from, made_up
from agentrl.reward.check.run import check_service

SAMPLES = 16


def check(
    url: Annotated[str, typer.Argument(help="Where /score and /health are, like http://127.0.0.1:9100.")],
    items: Annotated[
        Path | None,
        typer.Option(help="JSONL of items as POST /score takes them; made-up sums when it is not given."),
    ] = None,
    low: Annotated[float | None, typer.Option("--min", help="The least reward that the service declares.")] = None,
    high: Annotated[float | None, typer.Option("--max", help="The greatest reward that it declares.")] = None,
    key_env: Annotated[str | None, typer.Option(help="Environment variable with the service's key.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that one request may take.")] = 30.0,
    load: Annotated[float, typer.Option(min=0.1, help="Seconds of load for each point of the curve.")] = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a reward service: its answers, its manners, its speed. Exit status 1 when there is an error.

    It is asked for the same items again, in another order, alone, very long and odd ones, none at all, and under load.
    Each finding has a code that docs/reward-check.md explains.

    Example: `agentrl reward check http://127.0.0.1:9100 --min 0 --max 1`
    """
    console = Console(emoji=False)
    asked = made_up(SAMPLES) if items is None else items_from(items)
    bounds = None if low is None and high is None else (_or(low, float("-inf")), _or(high, float("inf")))
    key = None if key_env is None else os.environ.get(key_env)
    if key_env is not None and not key:
        raise ConfigError(f"the environment variable {key_env}, which is to hold the service's key, is not set")
    progress = Console(stderr=True, emoji=False, quiet=as_json)
    report = asyncio.run(
        check_service(
            url,
            asked,
            key=key,
            bounds=bounds,
            timeout_s=timeout,
            load_s=load,
            progress=lambda what: progress.print(f"{what} …", style="dim", highlight=False),
        )
    )
    if as_json:
        console.print_json(msgspec.json.encode(report).decode())
    else:
        _print(console, report)
    if any(finding.severity == "error" for finding in report.findings):
        raise typer.Exit(1)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _print(console: Console, report: Report) -> None:
    colours = {"error": "red", "warning": "yellow"}
    for finding in report.findings:
        console.print(f"[{colours[finding.severity]}]{finding.severity} {finding.code}[/]", highlight=False)
        console.print(f"    {escape(finding.message)}", soft_wrap=True, highlight=False)
        console.print(f"    fix: {escape(finding.fix)}", soft_wrap=True, highlight=False)
    if report.curve:
        table = Table("batch", "at once", "p50 ms", "p99 ms", "items/s", title="latency and throughput", box=None)
        for load in report.curve:
            numbers = (f"{load.p50_ms:.1f}", f"{load.p99_ms:.1f}", f"{load.items_per_s:,.0f}")
            table.add_row(str(load.batch_size), str(load.at_once), *numbers)
        console.print(table)
    if report.unscored:
        console.print(f"{report.unscored} of {report.items} items got no reward: give --items that it can judge")
    errors = sum(finding.severity == "error" for finding in report.findings)
    warnings = len(report.findings) - errors
    counted = f"{errors} errors, {warnings} warnings; docs/reward-check.md explains each"
    console.print(counted if report.findings else "nothing found")
