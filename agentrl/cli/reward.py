"""`agentrl reward`: reward services to run, and the check of somebody's."""

from __future__ import annotations

import os
import socket
from importlib.metadata import entry_points
from typing import Annotated

import typer
import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from agentrl import plugins
from agentrl.cli.env_options import option_values
from agentrl.cli.listening import listening
from agentrl.cli.reward_check import check
from agentrl.errors import ConfigError
from agentrl.reward.app import build_app

reward_app = typer.Typer(help="Run reward services, and check somebody's.", no_args_is_help=True)

PLUGIN_GROUP = "agentrl.rewards"
GRACE_S = 5.0  # for what is being scored when it is told to end
KEEPALIVE_S = 75  # above every client's own, so that no request is sent into a connection that is being closed


reward_app.command()(check)


@reward_app.command("list")
def list_services() -> None:
    """The reward services that are installed. Example: `agentrl reward list`"""
    table = Table("name", "what it is", box=None)
    for point in sorted(entry_points(group=PLUGIN_GROUP), key=lambda point: point.name):
        described = (plugins.load(PLUGIN_GROUP, point.name).__doc__ or "").strip().partition("\n")[0]
        table.add_row(escape(point.name), escape(described))
    Console(emoji=False).print(table)


@reward_app.command()
def serve(
    name: Annotated[str, typer.Argument(help="A name from `agentrl reward list`, module:Class or file.py:Class.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond loopback, put TLS in front and give --key-env.")
    ] = "127.0.0.1",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="KEY=VALUE", help="A keyword argument of the service, e.g. `label=answer`."),
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key that callers have to send.")
    ] = None,
    fd: Annotated[int | None, typer.Option(hidden=True, help="A listening socket that was inherited.")] = None,
    max_waiting: Annotated[int, typer.Option(min=1, help="Items under way before callers are told to wait.")] = 10_000,
) -> None:
    """Run a reward service: `POST /score`, `GET /health`, `GET /metrics`, documentation at `/docs`.

    Example: `agentrl reward serve match --port 9100 --option how=regex --option label=pattern`
    """
    make = plugins.load(PLUGIN_GROUP, name)
    key = _key(key_env)
    try:
        service = make(**option_values(option or []))
    except TypeError as error:
        raise ConfigError(f"reward service {name} does not take these options: {error}") from error
    app = build_app(name, service, description=make.__doc__ or "", key=key, max_waiting=max_waiting)
    with socket.socket(fileno=fd) if fd is not None else listening(host, port) as sock:
        address = sock.getsockname()
        shown = f"http://{address[0]}:{address[1]}"
        Console(emoji=False).print(f"reward service {name} at {shown} (documentation: {shown}/docs)", soft_wrap=True)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            timeout_keep_alive=KEEPALIVE_S,
            timeout_graceful_shutdown=int(2 * GRACE_S),
        )
        # A run that ends its service wants nothing of it any more.
        _Server(config, app, grace_s=GRACE_S if fd is None else 0.0).run(sockets=[sock])


class _Server(uvicorn.Server):
    """Tells the service to stop before it waits for the requests under way, which that ends."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, *, grace_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.state.stop(self._grace_s)
        await super().shutdown(sockets)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"the environment variable {variable}, which is to hold the service's key, is not set")
    return key
