"""The gateway as a server inside the running event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from agentrl.errors import ConfigError, RunError
from agentrl.gateway.app import build_app
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.engines import EngineFactory
from agentrl.gateway.gateway import Gateway, stop_task
from agentrl.gateway.keys import KEY, new_admin_key
from agentrl.gateway.one_write import OneWriteProtocol
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.render import Renderer
from agentrl.gateway.workers.crew import Crew
from agentrl.gateway.workers.engines import SharedEngines
from agentrl.gateway.workers.peers import Peers
from agentrl.gateway.workers.placement import ALONE
from agentrl.gateway.workers.seat import Seat

START_S, STOP_S = 30.0, 10.0
LONGER_S = 30.0
"""Than it may take itself, a worker waits for another one."""
BACKLOG = 2048
KEEPALIVE_S = 75
"""Idle seconds after which a connection is closed. SDKs reuse theirs after 5; closing first would break a request."""


class GatewayServer:
    """`await start()`, then `await stop()`. `engine_factory` makes a client from a URL.

    `admin_key` opens the control API; a random one is made when none is given. A worker of a larger gateway has a
    `seat` there. Raises ConfigError for a key that no header can carry, and where one process is to be several workers.
    """

    def __init__(
        self,
        config: GatewayConfig,
        *,
        renderer: Renderer,
        engine_factory: EngineFactory,
        admin_key: str | None = None,
        sink: TrajectorySink | None = None,
        seat: Seat | None = None,
    ) -> None:
        if config.workers > 1:
            raise ConfigError(
                f"gateway.workers is {config.workers}, and this gateway is one process; set it to 1, or run "
                "`agentrl serve --workers N`"
            )
        self.config = config
        if admin_key and not KEY.fullmatch(admin_key):
            raise ConfigError(
                "the admin key holds spaces or characters beyond ASCII, which no client can send; change it"
            )
        self.admin_key = admin_key or new_admin_key()
        placement = ALONE if seat is None else seat.at
        self.gateway = Gateway(
            config, renderer, engine_factory, admin_key=self.admin_key, sink=sink, placement=placement
        )
        self.peers = self.engines = None
        if seat is None:
            self._app = build_app(self.gateway, renderer)
        else:
            self.peers = peers = Peers(seat, limit_s=config.request_timeout_s + config.save_timeout_s + LONGER_S)
            self.engines = engines = SharedEngines(self.gateway.pools, peers, seat)
            self._app = build_app(self.gateway, renderer, lambda app: Crew(app, self.gateway, seat, peers, engines))
        self._server: _Server | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        return self.gateway.base_url

    async def start(self, listener: socket.socket | None = None) -> str:
        """Listens, takes up the sessions in the store, and only then answers; attaches the configured engines last.

        Returns the URL. Raises ConfigError when the port is taken, StoreError when the store cannot be read.
        """
        listener = listener or listen(self.config.host, self.config.port)
        self.gateway.base_url = (self.config.public_url or url_of(listener)).rstrip("/")
        try:
            await self.gateway.restore()
        except BaseException:
            listener.close()
            await self.gateway.close()
            raise
        self._server = _Server(
            uvicorn.Config(
                self._app,
                http=OneWriteProtocol,
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                lifespan="off",
                ws="none",
                backlog=BACKLOG,
                timeout_keep_alive=KEEPALIVE_S,
                timeout_graceful_shutdown=int(STOP_S / 2),
            )
        )
        serving = asyncio.create_task(self._server.serve([listener]), name="gateway server")
        expiring = asyncio.create_task(self.gateway.expire_forever(), name="gateway session expiry")
        self._tasks = [serving, expiring]
        try:
            async with asyncio.timeout(START_S):
                while not self._server.started:
                    if serving.done():
                        raise RunError(f"the gateway's server ended while starting: {serving.exception()!r}")
                    await asyncio.sleep(0.005)
            await self.gateway.start()
        except BaseException:
            await self.stop()
            raise
        return self.url

    async def wait(self) -> None:
        """Returns or raises when a background task has ended, which none does by itself."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()

    async def stop(self) -> None:
        """Ends it within some seconds: what is in flight first gets time to finish. Safe to call twice."""
        if self._server is None:
            return
        server, self._server = self._server, None
        serving, expiring = self._tasks
        await stop_task(expiring)
        server.should_exit = True
        await asyncio.wait({serving}, timeout=STOP_S)
        if not serving.done():
            server.force_exit = True
            await asyncio.wait({serving}, timeout=STOP_S)
        await stop_task(serving)
        if self.peers is not None:
            await self.peers.close()
        await self.gateway.close()


class _Server(uvicorn.Server):
    """Signals belong to the process that the gateway runs in."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """Raises ConfigError when it cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's algorithm only where the protocol is spelt out; with it, an answer may wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"gateway port {port} on {host} is in use; choose another, or 0 for a free one"
            ) from error
        raise ConfigError(f"the gateway cannot listen on {host}:{port}: {error}") from error
    listener.setblocking(False)
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
