"""A proxy between a client and the gateway that breaks connections as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit


class FlakyProxy:
    """`swallow(text)`: the next connection is cut once the server said `text`, and its client gets nothing.

    `cut()` breaks every connection that is open.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._swallow: list[bytes] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._open: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.connections = 0

    def swallow(self, *texts: bytes) -> None:
        self._swallow += texts

    def cut(self) -> None:
        for writer in list(self._open):
            writer.transport.abort()

    def through(self, base_url: str) -> str:
        """A URL of the server, by way of this proxy."""
        return self.url + urlsplit(base_url).path

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        until = self._swallow.pop(0) if self._swallow else None
        upstream_reader, upstream = await asyncio.open_connection(self._host, self._port)
        self._open |= {writer, upstream}
        up = asyncio.create_task(_pump(reader, upstream))
        self._tasks.add(up)
        try:
            await (_pump(upstream_reader, writer) if until is None else _drain(upstream_reader, until))
        finally:
            up.cancel()
            self._open -= {writer, upstream}
            for each in (writer, upstream):
                each.transport.abort()

    async def end(self) -> None:
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def flaky(url: str) -> AsyncIterator[FlakyProxy]:
    proxy = FlakyProxy(url)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


async def _drain(reader: asyncio.StreamReader, until: bytes) -> None:
    seen = b""
    while until not in seen and (data := await reader.read(65536)):
        seen += data
