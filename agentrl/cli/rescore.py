"""`agentrl rescore RUN REWARDS`: other rewards for what a run sampled."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from agentrl.audit.stored_run import StoredRun
from agentrl.cli.rewards_file import read_rewards
from agentrl.store.sql import SqlStore
from agentrl.train.rescore import Rescored, Rescorer
from agentrl.types import Mode


def rescore(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    rewards: Annotated[Path, typer.Argument(help="A TOML file with a [reward] table, a run's file for one.")],
    label: Annotated[str, typer.Option(help="Name of the new reward among the components.")] = "rescored",
    evaluations: Annotated[bool, typer.Option("--evaluations", help="The evaluations' trajectories instead.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Also what has a reward of this label already.")] = False,
) -> None:
    """Score a run's stored trajectories again, beside the rewards that they have, without the policy.

    The rewards that the run trained on stay as they are. A rescoring that was stopped goes on when it is repeated.
    Exit status 1 when a trajectory got no reward.

    Example: `agentrl rescore runs/demo examples/02_http_reward/run.toml --label judged`
    """
    directory = StoredRun.open(run)
    config = read_rewards(rewards)
    mode: Mode = "eval" if evaluations else "train"
    store = SqlStore(directory.store_url, create=False)
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=Console(stderr=True, emoji=False), transient=True) as progress:
            bar = progress.add_task("", total=store.count(mode=mode))
            rescorer = Rescorer(store, config, label=label, progress=lambda: progress.advance(bar))
            found = asyncio.run(rescorer.run(mode=mode, again=again))
    finally:
        store.close()
    _print(Console(emoji=False), label, found)
    if found.without:
        raise typer.Exit(1)


def _print(console: Console, label: str, found: Rescored) -> None:
    console.print(
        f"{found.scored} trajectories have the reward {label!r} now, {found.without} could not be scored, "
        f"{found.skipped} were left out",
        highlight=False,
        soft_wrap=True,
    )
    if found.old_mean is not None:
        linked = "none, as one does not vary" if found.correlation is None else f"{found.correlation:.3f}"
        console.print(
            f"mean {found.old_mean:.3f} as trained, {found.new_mean:.3f} now; correlation {linked}", highlight=False
        )
