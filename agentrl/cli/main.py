"""The `agentrl` command. Errors are one sentence on what to do; the traceback goes to the log.

Exit status: 0 done, 1 a run failed, 2 the configuration or command line is wrong, 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import traceback
from importlib import metadata
from typing import Annotated

import typer
from rich.console import Console

from agentrl.cli.audit import audit
from agentrl.cli.env import env_app
from agentrl.cli.eval import evaluate
from agentrl.cli.export import export
from agentrl.cli.rescore import rescore
from agentrl.cli.reward import reward_app
from agentrl.cli.serve import serve
from agentrl.cli.trace import trace
from agentrl.cli.train import train
from agentrl.errors import AgentRLError, ConfigError

app = typer.Typer(
    help="Train language-model agents by reinforcement learning in ordinary Python environments.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agentrl {metadata.version('agentrl')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language-model agents by reinforcement learning in ordinary Python environments."""


app.command()(train)
app.command("eval")(evaluate)
app.command()(serve)
app.command()(audit)
app.command()(trace)
app.command()(rescore)
app.command()(export)
app.add_typer(env_app, name="env")
app.add_typer(reward_app, name="reward")


def main() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a script inherits it ignored
    try:
        app()
    except ConfigError as error:
        _say(error)
        sys.exit(2)
    except AgentRLError as error:
        _say(error)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:  # ours to mend: say so in one line, and keep the traceback for the report
        path = _write_traceback()
        _say(f"{type(error).__name__}: {error} (this is a fault in agentrl or a plug-in; the traceback is in {path})")
        sys.exit(1)


def _say(error: object) -> None:
    terminal = Console(stderr=True, emoji=False, markup=False, highlight=False)
    terminal.print(f"agentrl: {error}", style="red", soft_wrap=True)


def _write_traceback() -> str:
    with tempfile.NamedTemporaryFile("w", prefix="agentrl-traceback-", suffix=".txt", delete=False) as file:
        traceback.print_exc(file=file)
    return file.name


if __name__ == "__main__":
    main()
