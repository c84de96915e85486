"""`agentrl env init`: the files of a new environment, ready to be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.env import scaffold


def init(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _; the folder and the class are called so.")],
    kind: Annotated[
        scaffold.Kind,
        typer.Option(
            help="tools: the policy calls tools; code: it writes code, tested in the sandbox; chat: messages only; "
            "program: your agent calls the policy."
        ),
    ] = "tools",
    directory: Annotated[Path, typer.Option("--dir", help="Where the new folder goes.")] = Path(),
) -> None:
    """Begin an environment: a class, tasks, a test that passes, a run file. Nothing is overwritten.

    Example: `agentrl env init word_count --kind chat`
    """
    commands = scaffold.write(name, kind, directory)
    typer.echo(f"{directory / name} is written. Next:")
    for command in commands:
        typer.echo(f"  {command}")
