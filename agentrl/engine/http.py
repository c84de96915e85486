"""POST over HTTP/1.1 with answers read as they come, at a third of aiohttp's cost: the hot path to an engine.

Kept-alive connections to one origin, http or https. No redirects, compression, cookies or proxies: engines have none.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from typing import cast
from urllib.parse import quote, unquote, urlsplit

import httptools

MAX_CONNECTIONS = 4096
KEEPALIVE_S = 4.0  # below uvicorn's 5 s, so that a reused connection is not closed under a request
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


class ConnectionPool:
    """The connections to one origin, the last used first. Belongs to the event loop in which it was made."""

    def __init__(
        self,
        url: str,
        *,
        connect_s: float,
        max_connections: int = MAX_CONNECTIONS,
        keepalive_s: float = KEEPALIVE_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Raises ValueError for what is no URL. `tls` is the system's by default."""
        parts = urlsplit(url)
        is_https = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_https else 80)
        self._tls = (tls or ssl.create_default_context()) if is_https else None
        self._path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._headers = _headers(parts.netloc)
        self._connect_s = connect_s
        self._keepalive_s = keepalive_s
        self._slots = asyncio.Semaphore(max_connections)
        self._open: set[Connection] = set()
        self._idle: dict[Connection, float] = {}  # and since when; the longest idle first
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    async def post(self, path: str, body: bytes, deadline: float) -> Connection:
        """A connection on which the head of the answer has come; give it back with `release`.

        A kept connection may have been closed under the request. If not one byte of an answer came, the server had not
        taken it up, and it is sent once more on a new one. Raises Broken, or TimeoutError at `deadline` (loop time).
        """
        request = b"POST %s%s HTTP/1.1\r\n%scontent-length: %d\r\n\r\n%s" % (
            self._path.encode(),
            path.encode(),
            self._headers,
            len(body),
            body,
        )
        async with asyncio.timeout_at(deadline if self._slots.locked() else None):
            await self._slots.acquire()
        connection = self._take_idle()
        try:
            if connection is not None:
                connection.send(request)
                try:
                    await connection.head(deadline)
                    return connection
                except Broken:
                    if connection.heard:
                        raise
            connection = await self._connect(deadline)
            connection.send(request)
            await connection.head(deadline)
            return connection
        except BaseException:
            if connection is not None:
                connection.abort()
            self._slots.release()
            raise

    def release(self, connection: Connection) -> None:
        """Keeps it for the next request if its answer was received to the end, and aborts that otherwise."""
        self._slots.release()
        if self._closed or not connection.is_reusable:
            connection.abort()
            return
        connection.rest()
        now = asyncio.get_running_loop().time()
        self._idle[connection] = now
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_at(now + self._keepalive_s, self._reap)

    def close(self) -> None:
        """Requests in flight break. Any later one does too."""
        self._closed = True
        if self._reaper is not None:
            self._reaper.cancel()
        for connection in list(self._open):
            connection.abort()

    def _take_idle(self) -> Connection | None:
        expired = asyncio.get_running_loop().time() - self._keepalive_s
        while self._idle:
            connection, since = self._idle.popitem()
            if since > expired and connection.is_open:
                return connection
            connection.abort()
        return None

    def _reap(self) -> None:
        """Closes what has been idle for too long, and comes back when the next one has been."""
        self._reaper = None
        loop = asyncio.get_running_loop()
        while self._idle:
            connection, since = next(iter(self._idle.items()))
            if loop.time() < since + self._keepalive_s:
                self._reaper = loop.call_at(since + self._keepalive_s, self._reap)
                return
            del self._idle[connection]
            connection.abort()

    async def _connect(self, deadline: float) -> Connection:
        loop = asyncio.get_running_loop()
        timeout_at = min(deadline, loop.time() + self._connect_s)
        try:
            async with asyncio.timeout_at(timeout_at):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._lost), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise Broken(f"{self._host}:{self._port} took no connection in {self._connect_s:g} s") from None
        except (OSError, UnicodeError) as error:  # a host name may be no IDNA
            raise Broken(f"{self._host}:{self._port} took no connection: {error!r}") from error
        self._open.add(connection)
        if self._closed:
            connection.abort()
            raise Broken("the client was closed")
        return connection

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._idle.pop(connection, None)


def _headers(netloc: str) -> bytes:
    """The lines that every request to an origin has. A URL may have a user and a password."""
    user, at, host = netloc.rpartition("@")
    host = host if host.isascii() else host.encode("idna").decode()
    lines = [f"host: {host}", "content-type: application/json", "accept: */*", "accept-encoding: identity"]
    if at:
        lines.append("authorization: Basic " + base64.b64encode(unquote(user).encode()).decode())
    return "".join(f"{line}\r\n" for line in lines).encode()
