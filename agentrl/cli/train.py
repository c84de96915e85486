"""`agentrl train FILE`: one run, from its TOML file to its summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cluster.check import check
from agentrl.cluster.run import run_training
from agentrl.config import load_run_config


def train(
    file: Annotated[Path, typer.Argument(help="The run's TOML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. `--set trainer.learning_rate=1e-5`."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and its directory.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of task order, environments and trainer.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run of the same name.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check all but reward services and print the resolved configuration; start nothing."
        ),
    ] = False,
) -> None:
    """Train a policy by reinforcement learning.

    Example: `agentrl train examples/01_calculator/run.toml --set loop.steps=20`
    """
    options = {"name": name, "seed": seed}
    extra = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    config = load_run_config(file, [*(overrides or ()), *extra])
    console = Console(emoji=False)
    if dry_run:
        check(config, services=False)
        console.print_json(config.model_dump_json())
        return
    run_training(config, console, overwrite=overwrite)
