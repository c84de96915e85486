"""Notices that the client of a request has left."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

WATCH_AFTER_S = 0.05
"""An answer that takes no longer is not worth a watcher: its client gets it or misses it all the same."""


class Departure:
    """`gone` is done when the client has closed its connection. Made after the body was read; `close` it at the end."""

    def __init__(self, request: Request) -> None:
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self._request = request
        self._watcher: asyncio.Task[None] | None = None
        self._timer = loop.call_later(WATCH_AFTER_S, self._start)

    def close(self) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None  # its traceback will hold this, and with it the request

    def _start(self) -> None:
        self._watcher = asyncio.create_task(self._watch(), name="departure")

    async def _watch(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass
        self.gone.set_result(None)
