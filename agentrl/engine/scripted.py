"""The scripted twin of a vLLM server: the same HTTP subset, in this process, answering what a test tells it to.

    async with ScriptedEngine(lambda prompt_ids, sampling, version: [5, 6, 7]) as engine:
        client = HttpEngineClient(engine.url)

Where the event loop is blocked, or there is none, `with ScriptedEngine(script) as engine:` serves from a thread.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Self

from aiohttp import web

from agentrl.engine.scripted_http import routes
from agentrl.engine.scripted_state import HANG, WAIT_S, EngineState, Fault, Reply, Request, Script, scripted_logprob

__all__ = ["HANG", "Fault", "Reply", "Request", "Script", "ScriptedEngine", "scripted_logprob"]


class ScriptedEngine(EngineState):
    """Serves its script on a free loopback port. `crash` and `restart` are the death of the server and its return."""

    _port = 0
    _runner: web.AppRunner | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def crash(self) -> None:
        """Breaks every connection and stops listening."""
        assert self._runner is not None, "the engine is not running"
        assert self._runner.server is not None
        for connection in list(self._runner.server.connections):
            if connection.transport is not None:
                connection.transport.abort()
        await self._stop()

    async def restart(self) -> None:
        """Comes back on the same port with the weights it had at first."""
        self.boot()
        await self._start()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def __enter__(self) -> Self:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="scripted-engine", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), loop).result(WAIT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop, thread = self._loop, self._thread
        assert loop is not None
        assert thread is not None
        asyncio.run_coroutine_threadsafe(self._stop(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_S)
        loop.close()

    async def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = web.Application(client_max_size=2**28)
        app.add_routes(routes(self))
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
