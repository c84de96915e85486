"""`agentrl export RUN DIRECTORY`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from agentrl.train.export import export as export_weights


def export(
    source: Annotated[Path, typer.Argument(metavar="RUN|CHECKPOINT", help="A run directory, or one checkpoint of it.")],
    directory: Annotated[Path, typer.Argument(help="Where to write; empty or not there yet.")],
    version: Annotated[str | None, typer.Option(help="Of a run: a number, `latest` (the default) or `best`.")] = None,
    ema: Annotated[bool, typer.Option("--ema", help="The moving average of the weights (`trainer.ema`).")] = False,
) -> None:
    """Write a checkpoint's weights as a Hugging Face directory, with config and tokenizer.

    Every file is compared with the checkpoint's manifest first. What training needs beside the weights is left out.

    Example: `agentrl export runs/demo models/demo --version best`
    """
    found = export_weights(source, directory, version=version, ema=ema)
    what = "the average at version" if ema else "version"
    Console(emoji=False).print(
        f"{what} {found.version} of {source} is in {directory} ({found.num_bytes / 1e6:,.1f} MB)",
        highlight=False,
        soft_wrap=True,
    )
