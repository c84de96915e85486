"""`agentrl env check`: what is wrong with an environment, before a run finds out."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from agentrl.assets import resolve_model
from agentrl.cli.env_options import ConstructorOption, EnvId, TaskFile, option_values
from agentrl.env.check.report import Report
from agentrl.env.check.runner import record
from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer

_DOING = {
    "tasks": "reading tasks",
    "alone": "playing each policy",
    "again": "playing the same in another process",
    "together": "playing two side by side",
    "reused": "resetting one instance",
    "leaks": "looking for what is left behind",
    "gymnasium": "running gymnasium's checker",
}


def check(
    env_id: EnvId,
    tasks: Annotated[int, typer.Option(help="Tasks that are played.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Which order of tasks.")] = 0,
    split: Annotated[str, typer.Option(help="The split that is played.")] = "train",
    task_file: TaskFile = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A model's directory: its chat template renders the conversations.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one call may take.", min=0.1)] = 30.0,
    option: ConstructorOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Play an environment with scripted policies, and say what is wrong with it.

    It runs in a process of its own: silent, random, tool-calling and wrong-calling policies, and its reference
    solution where it has one (`reference(messages) -> Message` in its class or in `reference.py` beside it). Tools are
    called with made-up arguments. Each finding has a code that docs/env-check.md explains. Exit status 1 when there is
    an error, 0 when there are only warnings or nothing.

    Example: `agentrl env check my_env.py:MyEnv --tasks 8`
    """
    render = None if tokenizer is None else Renderer.load(resolve_model(tokenizer)).first
    terminal = Console(stderr=True, emoji=False)
    with terminal.status("starting") as status:

        def say(section: str) -> None:
            status.update(_DOING.get(section, section))
            if not terminal.is_terminal:
                terminal.print(f"{_DOING.get(section, section)} …", highlight=False, soft_wrap=True)

        recording = record(
            env_id,
            options=option_values(option or []),
            split=split,
            task_file=task_file,
            seed=seed,
            tasks=tasks,
            timeout_s=timeout,
            progress=say,
        )
    if recording.refused is not None and recording.refused.config:
        raise ConfigError(recording.refused.text)
    report = Report.of(recording, render)
    if json:
        typer.echo(report.to_json())
    else:
        report.print(Console(emoji=False))
    if report.errors:
        raise typer.Exit(1)
