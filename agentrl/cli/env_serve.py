"""`agentrl env serve`: an environment for other people's trainers, over OpenEnv's protocol."""

from __future__ import annotations

import ipaddress
import os
from typing import Annotated

import typer
import uvicorn
from rich.console import Console

from agentrl.cli.env_options import ConstructorOption, EnvId, option_values
from agentrl.cli.listening import listening
from agentrl.errors import ConfigError
from agentrl.rollout.openenv_server import openenv_app

ENV_KEY = "AGENTRL_ENV_KEY"


def serve(
    env_id: EnvId,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8000,
    host: Annotated[str, typer.Option(help=f"Address to listen on. Beyond loopback, set {ENV_KEY}.")] = "127.0.0.1",
    option: ConstructorOption = None,
    max_sessions: Annotated[int, typer.Option(min=1, help="Sessions, and so environments, at once.")] = 64,
    env_timeout: Annotated[float, typer.Option(min=0.1, help="Longest call of the environment, in seconds.")] = 60.0,
    idle_timeout: Annotated[float, typer.Option(min=1, help="Seconds after which a silent session ends.")] = 600.0,
) -> None:
    """Serve an environment to others: OpenEnv's clients drive it. Ends with Ctrl-C.

    Clients send the key in AGENTRL_ENV_KEY, when it is set, as `Authorization: Bearer …`.

    Example: `agentrl env serve agentrl/Calculator-v0 --port 8000`, then in Python
    `GenericEnvClient(base_url="http://127.0.0.1:8000").sync()`
    """
    key = os.environ.get(ENV_KEY) or None
    if key is None and not _is_loopback(host):
        raise ConfigError(f"--host {host} is open to others, and {ENV_KEY} is not set; set it to a secret of yours")
    app = openenv_app(
        env_id,
        env_kwargs=option_values(option or []),
        max_sessions=max_sessions,
        env_timeout_s=env_timeout,
        idle_timeout_s=idle_timeout,
        key=key,
    )
    taken = listening(host, port)
    address = f"http://{host}:{taken.getsockname()[1]}"
    Console(emoji=False).print(f"{env_id} at {address} (WebSocket /ws), until Ctrl-C", highlight=False, soft_wrap=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    server.run(sockets=[taken])


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
