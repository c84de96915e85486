"""`agentrl serve`: the gateway alone, in front of engines by URL. No Ray, no trainer."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from uvicorn.loops.auto import auto_loop_factory

from agentrl.assets import DIRECTORIES, EMBEDDED, resolve_model
from agentrl.config import describe
from agentrl.engine.keyed import engine_clients
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.keys import new_admin_key
from agentrl.gateway.process import favour_the_event_loop
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.workers.supervisor import Supervisor
from agentrl.store.sql import SqlStore

ADMIN_KEY = "AGENTRL_ADMIN_KEY"
DEFAULTS = GatewayConfig()
NO_STORE = "warning: no --store was given: sessions and trajectories stay in memory and end with the gateway"


def serve(
    engine_url: Annotated[
        list[str], typer.Option("--engine-url", help="A vLLM server; give it once for each engine.", show_default=False)
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            help=f"Folder with the policy's tokenizer and chat template; {EMBEDDED} is the embedded policy's.",
            show_default=False,
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond loopback, put TLS in front: keys travel in clear text.")
    ] = "127.0.0.1",
    public_url: Annotated[
        str | None, typer.Option(help="What agents reach the gateway by, when that is not its own address.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            help="SQLAlchemy URL of the trajectory store, like sqlite:///trajectories.db or postgresql://host/db. "
            "Without it, sessions and trajectories stay in memory and end with the gateway."
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(help="Whose open sessions the store keeps. Gateways that share a store need names of their own."),
    ] = DEFAULTS.name,
    parser: Annotated[
        str,
        typer.Option(help="How the policy writes tool calls and reasoning, like hermes; auto goes by its template."),
    ] = DEFAULTS.parser,
    engine_concurrency: Annotated[
        int, typer.Option(min=1, help="Calls that one engine runs at once: vLLM's --max-num-seqs.")
    ] = DEFAULTS.engine_concurrency,
    engine_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the engines' key, where they were started with --api-key."),
    ] = DEFAULTS.engine_key_env,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Processes that share the sessions. The first listens on --port, the others on free ones.",
        ),
    ] = DEFAULTS.workers,
) -> None:
    """Serve the gateway alone, in front of engines that are already running.

    The admin key is taken from AGENTRL_ADMIN_KEY, or made and printed once. Give it, and a store, where sessions and
    their keys have to outlive the gateway.

    Example: `agentrl serve --engine-url http://127.0.0.1:8000 --tokenizer ./model --port 8080
    --store sqlite:///trajectories.db`
    """
    console = Console(emoji=False)
    for url in engine_url:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"--engine-url {url!r} is not a URL; write it like http://127.0.0.1:8000")
    given = os.environ.get(ADMIN_KEY)
    try:
        config = GatewayConfig(
            name=name,
            host=host,
            port=port,
            public_url=public_url,
            parser=parser,
            engine_urls=tuple(engine_url),
            engine_concurrency=engine_concurrency,
            engine_key_env=engine_key_env,
            workers=workers,
        )
    except ValidationError as error:
        raise ConfigError("; ".join(describe(error))) from error
    clients = engine_clients(config.engine_urls, config.engine_key_env)
    if workers > 1:
        command = [sys.executable, "-m", "agentrl.cli.gateway_worker"]
        admin_key = given or new_admin_key()
        supervisor = Supervisor(command, config, tokenizer=tokenizer, store_url=store, admin_key=admin_key)
        asyncio.run(_supervise(supervisor, console, shown_key=None if given else admin_key, durable=store is not None))
        return
    renderer = Renderer.load(resolve_model(tokenizer) if tokenizer in DIRECTORIES else Path(tokenizer).expanduser())
    sink = SqlStore(store) if store else None
    server = GatewayServer(config, renderer=renderer, engine_factory=clients, admin_key=given, sink=sink)
    try:
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:  # uvloop where it is installed
            shown_key = None if given else server.admin_key
            runner.run(_serve(server, console, shown_key=shown_key, durable=sink is not None))
    finally:
        if sink is not None:
            sink.close()


async def _serve(server: GatewayServer, console: Console, *, shown_key: str | None, durable: bool) -> None:
    stopping = _stop_signal()
    await server.start()
    favour_the_event_loop()
    try:
        silent = [str(engine.last_error) for engine in server.gateway.pools.engines if not engine.healthy]
        _greet(console, server.url, shown_key=shown_key, silent_engines=silent, durable=durable)
        await _until(stopping, server.wait())
    finally:
        await server.stop()


async def _supervise(supervisor: Supervisor, console: Console, *, shown_key: str | None, durable: bool) -> None:
    stopping = _stop_signal()
    starting = asyncio.create_task(supervisor.start(), name="start of the workers")
    try:
        await _until(stopping, asyncio.shield(starting))
        if not stopping.is_set():
            silent = supervisor.warnings
            _greet(console, await starting, shown_key=shown_key, silent_engines=silent, durable=durable)
            await _until(stopping, supervisor.wait())
    finally:
        starting.cancel()
        await supervisor.stop()


def _stop_signal() -> asyncio.Event:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


async def _until(stopping: asyncio.Event, end: Awaitable[object]) -> None:
    """Returns when the one is set or the other has ended, and raises what that raised."""
    ended = asyncio.ensure_future(end)
    stopped = asyncio.create_task(stopping.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if ended.done():
        ended.result()
    ended.cancel()


def _greet(console: Console, url: str, *, shown_key: str | None, silent_engines: Sequence[str], durable: bool) -> None:
    say = console.print
    say(f"gateway at {url} (control API there, agents at /sessions/ID/v1); Ctrl-C ends it", soft_wrap=True)
    if shown_key is not None:
        say(f"admin key, shown once: {shown_key}", markup=False, highlight=False, soft_wrap=True)
    for error in silent_engines:
        say(f"warning: {error}; it is asked again every second", style="yellow", soft_wrap=True)
    if not durable:
        say(NO_STORE, style="yellow", soft_wrap=True)
