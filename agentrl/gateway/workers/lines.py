"""HTTP/1.1 to one other worker over kept connections, at a fraction of a general client's cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast
from urllib.parse import urlsplit

import httptools

CONNECT_S = 5.0
IDLE_S = 30.0
"""Less than a server's, so that no connection is reused that is being closed."""
MAX_BUFFERED_BYTES = 2**20
"""Of an answer that nobody has read yet; beyond it the connection is not read from."""

Content = bytes | AsyncIterator[bytes]


class Broken(ConnectionError):
    """There is no connection, it was lost, or what came over it is no HTTP."""


class Line(asyncio.Protocol):
    """A connection: `ask`, then `read` until it returns nothing; one request at a time. The caller bounds the waits.

    `status` and `headers` (names in lower case) are the answer's.
    """

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._error: Broken | None = None
        self._changed = asyncio.Event()  # something came, or the connection was lost
        self._writable = asyncio.Event()
        self._writable.set()
        self._begin(b"")
        self.complete = True  # nothing was asked yet

    def _begin(self, method: bytes) -> None:
        self.status = 0  # until the head has come
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False
        self._bodiless = method == b"HEAD"
        self._keep_alive = False
        self._parts: list[bytes] = []
        self._buffered = 0  # bytes
        self._paused = False

    @property
    def is_reusable(self) -> bool:
        """Whether all was sent, all has come, and both ends keep it open."""
        if not self.complete or not self._keep_alive or self._bodiless or self._paused or self._transport is None:
            return False
        return self._error is None and not self._transport.is_closing() and not self._transport.get_write_buffer_size()

    async def ask(self, method: bytes, head: bytes, content: Content) -> None:
        """Returns when the head of the answer has come. `head` is all before the body. Raises Broken."""
        assert self._transport is not None
        self._begin(method)
        if isinstance(content, bytes):
            self._transport.write(head + content)
        else:
            chunked = b"\r\ntransfer-encoding: chunked\r\n" in head
            self._transport.write(head)
            async for data in content:
                if data:
                    self._transport.write(b"%x\r\n%s\r\n" % (len(data), data) if chunked else data)
                await self._writable.wait()
                self._raise_if_lost()
            if chunked:
                self._transport.write(b"0\r\n\r\n")
        while not self.status:
            await self._change()

    async def read(self) -> bytes:
        """All of the body that has come, at least a byte; b"" at its end. Raises Broken."""
        while not self._parts:
            if self.complete:
                return b""
            await self._change()
        received = b"".join(self._parts)
        self._parts.clear()
        self._buffered = 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return received

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _change(self) -> None:
        self._raise_if_lost()
        self._changed.clear()
        await self._changed.wait()

    def _raise_if_lost(self) -> None:
        if self._error is not None:
            raise self._error

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._error = Broken(f"its answer is no HTTP: {error!r}")
            self.abort()
        self._buffered += len(data)
        if self._buffered > MAX_BUFFERED_BYTES and not self._paused and not self.complete:
            assert self._transport is not None
            self._paused = True
            self._transport.pause_reading()
        self._changed.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._error = self._error or Broken("it closed the connection" + (f": {error!r}" if error else ""))
        self._writable.set()
        self._changed.set()

    # httptools calls these

    def on_message_begin(self) -> None:
        if self.complete:
            raise ValueError("an answer that nobody asked for")  # httptools makes an HttpParserError of it

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if (status := self._parser.get_status_code()) < 200:  # informational, and another head follows
            self.headers = []
            return
        self.status = status
        self._keep_alive = self._parser.should_keep_alive()
        self.complete = self._bodiless

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True


class Lines:
    """The connections to one worker; the last used one is used next."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self.host_header = f"host: {parts.netloc}\r\n".encode()
        self._idle: list[tuple[Line, float]] = []  # and since when

    async def take(self) -> Line:
        """Raises Broken."""
        loop = asyncio.get_running_loop()
        while self._idle:
            line, since = self._idle.pop()
            if line.is_reusable and loop.time() - since < IDLE_S:
                return line
            line.abort()
        try:
            async with asyncio.timeout(CONNECT_S):
                _, line = await loop.create_connection(Line, self._host, self._port)
        except OSError as error:  # TimeoutError is one
            raise Broken(f"{self._host}:{self._port} took no connection: {error!r}") from error
        return line

    def give_back(self, line: Line) -> None:
        if line.is_reusable:
            self._idle.append((line, asyncio.get_running_loop().time()))
        else:
            line.abort()

    def close(self) -> None:
        while self._idle:
            self._idle.pop()[0].abort()
