"""`agentrl train FILE`: one run, from its TOML file to its summary."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cluster.check import check
from agentrl.cluster.run import resume_training, run_training
from agentrl.cluster.supervised import check_supervised, run_supervised
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.kinds import load_config


def train(
    file: Annotated[Path | None, typer.Argument(help="The run's TOML file.", show_default=False)] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one key, e.g. `--set trainer.learning_rate=1e-5`."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run and its directory.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of task order, environments and trainer.")] = None,
    resume: Annotated[
        str | None,
        typer.Option("--resume", metavar="RUN", help="Go on with a run that ended before its time: directory or name."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run of the same name.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Check all but reward services and print the resolved configuration; start nothing."
        ),
    ] = False,
) -> None:
    """Train a model, by what the file's `kind` says.

    `rl` (the default) is reinforcement learning in an environment, `sft` learns to say what is in transcripts,
    `reward_model` to score the better of two answers higher, `dpo` to prefer it.

    Example: `agentrl train examples/01_calculator/run.toml --set loop.steps=20`, or
    `agentrl train examples/08_supervised/sft.toml --set loop.epochs=2`, or, after a crash or Ctrl-C,
    `agentrl train --resume runs/demo`
    """
    if resume is not None:
        if file is not None or name is not None or seed is not None or overwrite or dry_run:
            raise ConfigError("--resume goes on with a run as it is; of the others only --set may stand beside it")
        return resume_training(resume, overrides or (), Console(emoji=False))
    if file is None:
        raise ConfigError("give the run's TOML file, examples/01_calculator/run.toml for one, or --resume RUN")
    options = {"name": name, "seed": seed}
    extra = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    config = load_config(file, [*(overrides or ()), *extra])
    console = Console(emoji=False)
    if isinstance(config, RunConfig):
        if not dry_run:
            return run_training(config, console, overwrite=overwrite)
        check(config, services=False)
    else:
        if not dry_run:
            return run_supervised(config, console, overwrite=overwrite)
        _, dataset = check_supervised(config)
        typer.echo(str(dataset), err=True)
    return console.print_json(config.model_dump_json())
