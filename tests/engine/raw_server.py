"""A TCP server that answers HTTP requests with the very bytes that it is told, and builders to ask it with."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import Any

from agentrl.engine.http import Connection
from agentrl.engine.http_pool import ConnectionPool

CLOSE = b"close"
"""In an answer: the server closes the connection here."""

WAIT = b"wait"
"""In an answer: the server says nothing more until the client is gone."""


class RawServer:
    """`answers` are series of writes, one answer for each request in order; the last one is kept for all others."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[Iterable[bytes]] = []
        self.requests: list[bytes] = []  # head and body
        self.connections = 0  # opened ever
        self.lost = 0  # closed by now, by whomever
        self._changed = asyncio.Condition()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            writer.close()
            async with self._changed:
                self.lost += 1
                self._changed.notify_all()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            body = await reader.readexactly(length)
            async with self._changed:
                self.requests.append(head + body)
                self._changed.notify_all()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            for part in answer:
                if part == CLOSE:
                    return
                if part == WAIT:
                    await reader.read()
                    return
                writer.write(part)
                await asyncio.sleep(0)
                await writer.drain()

    async def until(self, holds: Callable[[], Any]) -> None:
        async with self._changed:
            await asyncio.wait_for(self._changed.wait_for(holds), 10)


@asynccontextmanager
async def raw_server(*answers: Iterable[bytes], tls: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    raw = RawServer()
    raw.answers = list(answers)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0, ssl=tls)
    raw.url = f"http{'s' if tls else ''}://localhost:{server.sockets[0].getsockname()[1]}"
    try:
        yield raw
    finally:
        server.close()


def sized(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body


def chunked(*pieces: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + end


def soon(seconds: float = 10.0) -> float:
    return asyncio.get_running_loop().time() + seconds


@asynccontextmanager
async def pool_to(url: str, tls: ssl.SSLContext | None = None, **settings: float) -> AsyncIterator[ConnectionPool]:
    pool = ConnectionPool(url, tls=tls, **{"connect_s": 10.0, **settings})  # type: ignore[arg-type]
    try:
        yield pool
    finally:
        pool.close()
        await asyncio.sleep(0)


async def body_of(connection: Connection, deadline: float, into: list[bytes] | None = None) -> bytes:
    parts = [] if into is None else into
    while part := await connection.read(deadline):
        parts.append(part)
    return b"".join(parts)


async def ask(
    pool: ConnectionPool,
    body: bytes = b"{}",
    path: str = "/a",
    *,
    seconds: float = 10.0,
    into: list[bytes] | None = None,
) -> tuple[int, bytes]:
    connection = await pool.post(path, body, soon(seconds))
    try:
        return connection.status, await body_of(connection, soon(seconds), into)
    finally:
        pool.release(connection)
