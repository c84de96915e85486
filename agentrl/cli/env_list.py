"""`agentrl env list`: the environments that are installed, those of plug-ins included."""

from __future__ import annotations

import inspect
import logging
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl.env import registry
from agentrl.env.code_env import CodeEnv
from agentrl.env.program import Program
from agentrl.env.tool import tools_of
from agentrl.env.tool_env import ToolEnv
from agentrl.errors import ConfigError


def list_environments(
    ids: Annotated[bool, typer.Option("--ids", help="One id a line and nothing else, for scripts.")] = False,
) -> None:
    """The environments that are installed, with their kind and what they are.

    Kinds: "tools" are called by the policy, "code" is run in the sandbox, a "program" calls the policy itself, "roles"
    are several speakers, "chat" is messages only.

    Example: `agentrl env list --ids`
    """
    logging.basicConfig(format="%(message)s")  # a plug-in that fails is named on standard error
    known = registry.known()
    if ids:
        for env_id in known:
            typer.echo(env_id)
        return
    table = Table("id", "kind", "what it is", box=None)
    for env_id in known:
        table.add_row(*map(escape, (env_id, *_described(env_id))))
    Console(emoji=False).print(table)
    if not known:
        typer.echo("No environment is installed; `agentrl env init NAME` begins one.")


def _described(env_id: str) -> tuple[str, str]:
    """Kind, and the docstring's first line. One that cannot be had costs its own row only."""
    try:
        described = registry.described(env_id)
        return kind_of(described), (inspect.getdoc(described) or "").strip().partition("\n")[0]
    except ConfigError as error:
        return "?", f"cannot be had: {error}"


def kind_of(described: Any) -> str:
    """What a policy has to do in it, as far as its class says."""
    if not isinstance(described, type):
        return "?"  # a function that makes environments
    if issubclass(described, Program):
        return "program"
    if getattr(described, "roles", None):
        return "roles"
    if issubclass(described, CodeEnv):
        return "code"
    if issubclass(described, ToolEnv):
        try:
            return "tools" if tools_of(described) else "chat"
        except TypeError:  # `agentrl env check` says which cannot be described
            return "tools"
    return "tools" if isinstance(inspect.getattr_static(described, "tools", None), list) else "chat"
