"""POST to one origin over kept-alive connections, answers read as they come: the hot path to an engine.

Over http or https. No redirects, compression, cookies or proxies: engines have none.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from urllib.parse import quote, unquote, urlsplit

from agentrl.engine.http import Broken, Connection

MAX_CONNECTIONS = 4096
KEEPALIVE_S = 4.0  # below uvicorn's 5 s, so that a reused connection is not closed under a request


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
        bearer: str | None = None,
    ) -> None:
        """Raises ValueError for what is no URL. `tls` is the system's by default. `bearer` is the server's key."""
        parts = urlsplit(url)
        is_https = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or (443 if is_https else 80)
        self._tls = (tls or ssl.create_default_context()) if is_https else None
        self._path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self._headers = _headers(parts.netloc, bearer)
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


def _headers(netloc: str, bearer: str | None) -> bytes:
    """The lines that every request to an origin has. A URL may have a user and a password, where there is no key."""
    user, at, host = netloc.rpartition("@")
    host = host if host.isascii() else host.encode("idna").decode()
    lines = [f"host: {host}", "content-type: application/json", "accept: */*", "accept-encoding: identity"]
    if bearer is not None:
        lines.append(f"authorization: Bearer {bearer}")
    elif at:
        lines.append("authorization: Basic " + base64.b64encode(unquote(user).encode()).decode())
    return "".join(f"{line}\r\n" for line in lines).encode()
