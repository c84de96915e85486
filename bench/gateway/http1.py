"""A keep-alive HTTP/1.1 client that costs as little as Python can: one connection, one request at a time."""

from __future__ import annotations

import asyncio
from typing import cast
from urllib.parse import urlsplit

import httptools
from msgspec import Struct

TIMEOUT_S = 120.0


class Request(Struct, frozen=True):
    """`headers` are whole lines, each with its line end."""

    method: str
    path: str
    body: bytes = b""
    headers: bytes = b""


class Answer(Struct, frozen=True):
    status: int
    body: bytes


class BadAnswer(Exception):
    """A server said something else than 200, or nothing at all."""


class Connection(asyncio.Protocol):
    """Opened at the first request, and again after the server closed it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._body: list[bytes] = []

    async def ask(self, request: Request) -> bytes:
        """The body of a success. Raises BadAnswer for anything else, TimeoutError after two minutes."""
        answer = await self.send(request)
        if not 200 <= answer.status < 300:
            said = answer.body[:500].decode(errors="replace")
            raise BadAnswer(f"{request.method} {request.path} was answered {answer.status}: {said}")
        return answer.body

    async def send(self, request: Request) -> Answer:
        loop = asyncio.get_running_loop()
        if self._transport is None:
            await loop.create_connection(lambda: self, self._host, self._port)
        assert self._transport is not None
        head = (
            f"{request.method} {request.path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(request.body)}\r\n"
        )
        self._waiting = loop.create_future()
        self._transport.write(head.encode() + request.headers + b"\r\n" + request.body)
        async with asyncio.timeout(TIMEOUT_S):
            return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        body, self._body = b"".join(self._body), []
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(Answer(self._parser.get_status_code(), body))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(BadAnswer(f"the server closed the connection before it answered: {error!r}"))


async def ask(connection: Connection, request: Request | None) -> bytes:
    """As `Connection.ask`; b"" where there is nothing to ask."""
    return b"" if request is None else await connection.ask(request)
