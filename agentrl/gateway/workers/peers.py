"""The other workers, over loopback HTTP: asked small questions, and handed the requests that are theirs.

What comes and goes is passed on as bytes, in both directions as it comes. A request that no worker has begun to answer
when its worker dies is refused with a 503; an answer that has begun breaks off, as it would at a gateway that dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from starlette.types import Receive, Scope, Send

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.workers.lines import Content, Line, Lines
from agentrl.gateway.workers.seat import Seat

INTERNAL, FROM = "x-agentrl-worker", "x-agentrl-from"
"""Headers by which a worker knows another: their common key, and which one it is. They let nobody do what the other
keys of a request do not allow, beyond asking for the list of engines."""
MAX_FORWARDED = 8192
"""Requests on their way to other workers; the next one gets 503."""
RETRY_AFTER_S = 3.0
HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer", b"upgrade")
)
NOT_FORWARDED = HOP_BY_HOP | {b"host", b"transfer-encoding", b"expect", INTERNAL.encode(), FROM.encode()}
NOT_RETURNED = HOP_BY_HOP | {b"transfer-encoding", b"date"}
BODILESS = (b"GET", b"HEAD", b"DELETE", b"OPTIONS")

Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""


class _Left(Exception):
    """The client closed its connection."""


class Peers:
    """`limit_s` bounds the silence of another worker. Which workers are up is what `are_up` was told last."""

    def __init__(self, seat: Seat, *, limit_s: float) -> None:
        self._seat = seat
        self._own = f"{INTERNAL}: {seat.key}\r\n{FROM}: {seat.at.index}\r\n".encode()
        self._lines = {index: Lines(seat.urls[index]) for index in seat.others}
        self._limit_s = limit_s
        self._up: set[int] = set()
        self._unanswered: dict[int, set[asyncio.Timeout]] = {index: set() for index in seat.others}
        self._forwarded = 0

    @property
    def up(self) -> list[int]:
        """The others that are up."""
        return sorted(self._up)

    def are_up(self, workers: Iterable[int]) -> None:
        """Requests that wait for a worker that is not among them are refused now."""
        up = set(workers) & set(self._seat.others)
        now = asyncio.get_running_loop().time()
        for index in self._up - up:
            for scope in self._unanswered[index]:
                scope.reschedule(now)
            self._unanswered[index] = set()
        self._up = up

    def heard_of(self, worker: int) -> None:
        self._up |= {worker} & set(self._seat.others)

    async def ask(
        self, worker: int, method: str, path: str, *, body: bytes = b"", headers: Headers = (), limit_s: float
    ) -> tuple[int, bytes]:
        """The status and body of a small answer. Raises Refusal (503): it is down, or silent for `limit_s`."""
        try:
            async with (
                asyncio.timeout(limit_s),
                self._answer(worker, method, path.encode(), headers, body) as answer,
            ):
                parts = []
                while data := await answer.read():
                    parts.append(data)
                return answer.status, b"".join(parts)
        except OSError as error:  # TimeoutError is one
            raise restarting(worker) from error

    async def forward(self, worker: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request to a worker and its answer to the client. Raises Refusal (503) if there is none."""
        if self._forwarded >= MAX_FORWARDED:
            message = f"{self._forwarded} requests wait for other workers already"
            raise Refusal(503, "worker_busy", message, retry_after=RETRY_AFTER_S)
        self._forwarded += 1
        body = _Body(receive)
        passing = asyncio.create_task(self._pass_on(worker, scope, body, send), name="forwarded request")
        leaving = asyncio.create_task(body.client_leaves(), name="departure")
        try:
            await asyncio.wait({passing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
        except _Left:
            pass
        finally:
            self._forwarded -= 1
            for task in (passing, leaving):
                task.cancel()
            await asyncio.gather(passing, leaving, return_exceptions=True)

    async def close(self) -> None:
        for lines in self._lines.values():
            lines.close()

    async def _pass_on(self, worker: int, scope: Scope, body: _Body, send: Send) -> None:
        path: bytes = scope["raw_path"]
        if scope["query_string"]:
            path += b"?" + scope["query_string"]
        given = [(name, value) for name, value in scope["headers"] if name not in NOT_FORWARDED]
        begun = False
        try:
            content = await body.content()
            async with self._answer(worker, scope["method"], path, given, content) as answer:
                returned = [(name, value) for name, value in answer.headers if name not in NOT_RETURNED]
                begun = True
                await send({"type": "http.response.start", "status": answer.status, "headers": returned})
                while data := await self._read(answer):
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError as error:  # TimeoutError is one
            if body.client_left:
                raise _Left from error
            if begun:
                raise ConnectionError(f"worker {worker} broke off in the middle of an answer: {error!r}") from error
            raise restarting(worker) from error

    @asynccontextmanager
    async def _answer(
        self, worker: int, method: str, path: bytes, headers: Headers, content: Content
    ) -> AsyncIterator[Line]:
        """Raises Refusal for a worker that is down, OSError when it is lost before it answers."""
        if worker not in self._up:
            raise restarting(worker)
        lines, asked = self._lines[worker], method.encode()
        async with asyncio.timeout(self._limit_s) as unanswered:
            self._unanswered[worker].add(unanswered)
            try:
                line = await lines.take()
                try:
                    await line.ask(asked, self._head(lines, asked, path, headers, content), content)
                except BaseException:
                    line.abort()
                    raise
            finally:
                self._unanswered[worker].discard(unanswered)
        try:
            yield line
        finally:
            lines.give_back(line)

    def _head(self, lines: Lines, method: bytes, path: bytes, headers: Headers, content: Content) -> bytes:
        given = [b"%s: %s\r\n" % (name, value) for name, value in headers if name != b"content-length"]
        if isinstance(content, bytes):
            length = b"content-length: %d\r\n" % len(content) if content or method not in BODILESS else b""
        else:
            announced = next((value for name, value in headers if name == b"content-length"), None)
            length = b"transfer-encoding: chunked\r\n" if announced is None else b"content-length: %s\r\n" % announced
        return b"".join((method, b" ", path, b" HTTP/1.1\r\n", lines.host_header, *given, self._own, length, b"\r\n"))

    async def _read(self, line: Line) -> bytes:
        async with asyncio.timeout(self._limit_s):
            return await line.read()


class _Body:
    """A request's body, and what comes after it: that the client leaves."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read = asyncio.Event()
        self.client_left = False

    async def content(self) -> Content:
        """All of it where it is here already, as it comes otherwise. Raises _Left."""
        data, more = await self._next()
        return self._rest(data) if more else data

    async def client_leaves(self) -> None:
        """Returns then."""
        await self._read.wait()
        while not self.client_left:
            self.client_left = (await self._receive())["type"] == "http.disconnect"

    async def _rest(self, first: bytes) -> AsyncIterator[bytes]:
        yield first
        more = True
        while more:
            data, more = await self._next()
            yield data

    async def _next(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.client_left = True
            self._read.set()
            raise _Left
        more = bool(message.get("more_body"))
        if not more:
            self._read.set()
        return message.get("body", b""), more


def restarting(worker: int) -> Refusal:
    message = f"worker {worker} of the gateway, whose this is, is being started again; ask again"
    return Refusal(503, "worker_down", message, retry_after=RETRY_AFTER_S)
