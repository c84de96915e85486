"""Answers over ASGI: whole, or as server-sent events as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive, Scope, Send

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front would hold events back
]


class WholeAnswer:
    """JSON, as starlette's Response would send it: that one is made for every kind of answer there may be."""

    status_code = 200

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(self._body)), (b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": self._body})


class EventStream:
    """Sends what `events` yields, and closes it whatever happens. It has to end by itself when the client is gone."""

    status_code = 200

    def __init__(self, events: AsyncIterator[bytes]) -> None:
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        try:
            async for data in self._events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            await self._events.aclose()  # type: ignore[attr-defined]
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Mailbox:
    """What a task hands to the one that waits for it, many at a time. As bounded as what the task makes."""

    def __init__(self) -> None:
        self._items: list[object] = []
        self._arrived = asyncio.Event()

    def put(self, item: object) -> None:
        self._items.append(item)
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[object]:
        """All that is there; [] when nothing came in time."""
        if not self._items:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        items, self._items = self._items, []
        self._arrived.clear()
        return items
