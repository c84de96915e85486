"""A connection that speaks HTTP/1.1 as a client, one request at a time, at a third of aiohttp's cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

MAX_BUFFERED_BYTES = 2**20
"""Of an answer that nobody has read yet; beyond it the connection is not read from."""


class Broken(ConnectionError):
    """There is no connection, it was lost, or what came over it is no HTTP."""


class Connection(asyncio.Protocol):
    """One request at a time: `send`, `head`, then `read` until it returns nothing.

    Both an asyncio protocol and httptools' callbacks. What came before it broke is read before the error is raised.
    """

    def __init__(self, on_lost: Callable[[Connection], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_lost = on_lost
        self._parts: list[bytes] = []
        self.on_body = self._parts.append  # httptools calls it for each piece
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._error: Broken | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._deadline = 0.0
        self._begin()
        self.complete = True  # nothing was asked yet

    def _begin(self) -> None:
        self.status = 0  # until the head has come
        self.heard = False  # whether any byte of an answer has come
        self.complete = False
        self._keep_alive = False
        self._paused = False
        self._buffered = 0  # bytes

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    @property
    def is_reusable(self) -> bool:
        """Whether it is at rest between two requests: all was sent, all has come, and the server keeps it open."""
        if not (self.complete and self._keep_alive and self.is_open) or self._paused:
            return False
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def send(self, request: bytes) -> None:
        self._parts.clear()
        self._begin()
        if self._transport is not None:
            self._transport.write(request)

    async def head(self, deadline: float) -> None:
        """Waits for `status`. `deadline` is in loop time. Raises Broken or TimeoutError."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._wait(deadline)

    async def read(self, deadline: float) -> bytes:
        """All of the body that has come, at least a byte; b"" at its end. Raises Broken or TimeoutError."""
        while not self._parts:
            if self.complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait(deadline)
        received = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()
        return received

    def rest(self) -> None:
        """Nobody waits for anything any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def abort(self) -> None:
        """Closes it at once, which aborts the request on the engine."""
        self.rest()
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, deadline: float) -> None:
        """Until something happens. The timer is left running from one wait to the next, as deadlines move on."""
        if self._loop.time() >= deadline:  # a server that never pauses gives no timer a chance
            raise TimeoutError
        self._deadline = deadline
        if self._timer is None or deadline < self._timer_at:
            self._set_timer()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._set_timer()
        else:
            self._waiter.set_exception(TimeoutError())

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, error: Broken) -> None:
        self._error = self._error or error
        self.abort()
        self._wake()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self.complete:
            self._break(Broken("it sent bytes that nobody asked for"))
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(Broken(f"its answer is no HTTP: {error!r}; it sent {data[:200]!r}"))
            return
        self._buffered += len(data)
        if self._buffered > MAX_BUFFERED_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self._parts or self.complete:
            self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or Broken("it closed the connection" + (f": {error!r}" if error else ""))
        self.rest()
        self._wake()
        self._on_lost(self)

    # httptools calls these

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("an answer that nobody asked for")  # httptools makes an HttpParserError of it

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # before it come any number of informational ones
            self.status = status
            self._keep_alive = self._parser.should_keep_alive()

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
