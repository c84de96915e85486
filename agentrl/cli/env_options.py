"""What the commands about an environment share: its id, its constructor's arguments, its tasks from a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentrl.errors import ConfigError

EnvId = Annotated[str, typer.Argument(help="An id from `agentrl env list`, module:Class or path/to/file.py:Class.")]
ConstructorOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="A constructor argument, for each again; JSON, or text."),
]
TaskFile = Annotated[
    Path | None, typer.Option(help="JSONL or Parquet with a row for each task, instead of the environment's own.")
]


def option_values(options: Sequence[str]) -> dict[str, Any]:
    """Each value as JSON where it is JSON, else as text. Raises ConfigError for one without a key."""
    found: dict[str, Any] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.isidentifier():
            raise ConfigError(f"--option is given {option!r}; write --option key=value, key being an argument's name")
        found[key] = json_or_text(value)
    return found


def json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
