"""The gateway on an event loop of its own, the quickest installed, for processes whose main loop is another's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from uvicorn.loops.auto import auto_loop_factory

from agentrl.errors import RunError
from agentrl.gateway.server import GatewayServer

START_S, STOP_S = 60.0, 40.0

T = TypeVar("T")


class GatewayThread:
    """`start`, then `check` now and then, then `stop`; from any thread."""

    def __init__(self, server: GatewayServer) -> None:
        self._server = server
        self._url: Future[str] = Future()
        self._ended: Future[None] = Future()
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="gateway", daemon=True)

    def start(self) -> str:
        """Its URL. Raises ConfigError when the port is taken, RunError when it does not come up in time."""
        self._thread.start()
        try:
            return self._url.result(START_S)
        except TimeoutError:
            raise RunError(f"the gateway did not start in {START_S:g} s; its log says where it is") from None

    def run(self, ask: Callable[[GatewayServer], Coroutine[Any, Any, T]]) -> T:
        """Something of the server, asked on its own loop. Raises what it raises."""
        assert self._loop is not None, "the gateway was not started"
        return asyncio.run_coroutine_threadsafe(ask(self._server), self._loop).result()

    def check(self) -> None:
        """Raises what the server or one of its background tasks died of."""
        if self._ended.done():
            self._ended.result()

    def stop(self) -> None:
        """Ends it within some seconds. Safe to call twice, and when it never started."""
        if self._loop is not None and self._stopping is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
                runner.run(self._serve())
        except BaseException as error:  # told to whoever asks: a thread has nobody else to raise to
            if not self._url.done():
                self._url.set_exception(error)
            self._ended.set_exception(error)
        else:
            self._ended.set_result(None)

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._url.set_result(await self._server.start())
        watching = asyncio.create_task(self._server.wait(), name="gateway tasks")
        stopping = asyncio.create_task(self._stopping.wait(), name="gateway stop")
        try:
            await asyncio.wait({watching, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
        finally:
            watching.cancel()
            stopping.cancel()
            await self._server.stop()
