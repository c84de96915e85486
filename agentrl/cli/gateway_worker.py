"""One worker of `agentrl serve --workers N`: started by its supervisor, with two inherited files, and ended with it."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from uvicorn.loops.auto import auto_loop_factory

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.keyed import engine_clients
from agentrl.errors import AgentRLError, ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.process import favour_the_event_loop
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.gateway.workers.link import Assignment, Failed, Ready, Serving, WorkerLink
from agentrl.gateway.workers.shares import config_of_worker
from agentrl.store.sql import SqlStore


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor says when to stop
    link = WorkerLink(int(sys.argv[1]))
    listener = socket.socket(fileno=int(sys.argv[2]))
    listener.set_inheritable(False)
    try:
        with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
            runner.run(_serve(link, link.assignment(), listener))
    except AgentRLError as error:
        link.say(Failed(str(error), mistaken=isinstance(error, ConfigError)))
        sys.exit(1)


async def _serve(link: WorkerLink, given: Assignment, listener: socket.socket) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    config = GatewayConfig.model_validate(given.config)
    store = SqlStore(given.store_url) if given.store_url else None
    server = GatewayServer(
        config_of_worker(config, given.seat.at),
        renderer=Renderer.load(
            resolve_model(given.tokenizer) if given.tokenizer == EMBEDDED else Path(given.tokenizer).expanduser()
        ),
        engine_factory=engine_clients(config.engine_urls, config.engine_key_env),
        admin_key=given.admin_key,
        sink=store,
        seat=given.seat,
    )
    assert server.peers is not None
    server.peers.are_up(given.up)
    link.listen(server.peers.are_up)
    working = asyncio.create_task(_work(link, server, config.engine_urls, listener), name="gateway worker")
    stopped = asyncio.create_task(stopping.wait(), name="gateway stop")
    try:
        await asyncio.wait({working, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, stopped):
            task.cancel()
        await asyncio.wait({working, stopped})
        await server.stop()
        if store is not None:
            store.close()


async def _work(link: WorkerLink, server: GatewayServer, engine_urls: Sequence[str], listener: socket.socket) -> None:
    """Returns or raises when something of it has ended, which nothing does by itself."""
    assert server.engines is not None
    await server.start(listener)
    link.say(Serving())
    await server.engines.attach(engine_urls)
    favour_the_event_loop()
    link.say(Ready([str(engine.last_error) for engine in server.gateway.pools.engines if not engine.healthy]))
    async with asyncio.TaskGroup() as group:
        group.create_task(server.engines.follow_forever(), name="engines of all workers")
        group.create_task(server.wait(), name="gateway tasks")


if __name__ == "__main__":
    main()
