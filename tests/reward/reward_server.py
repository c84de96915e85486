"""A reward service for tests: a real HTTP server on loopback, whose behaviour a test gives as a function."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Behaviour = Callable[[dict[str, Any]], Awaitable[web.Response]]


class RewardServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Any] = []
        self.paths: list[str] = []
        self.at_once = 0
        self.most_at_once = 0


@asynccontextmanager
async def serving(behaviour: Behaviour, tls: ssl.SSLContext | None = None) -> AsyncIterator[RewardServer]:
    async def handle(request: web.Request) -> web.Response:
        body = await request.json()
        server.bodies.append(body)
        server.headers.append(request.headers)
        server.paths.append(request.path)
        server.at_once += 1
        server.most_at_once = max(server.most_at_once, server.at_once)
        try:
            return await behaviour(body)
        finally:
            server.at_once -= 1

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_post("/score", handle)
    app.router.add_post("/", handle)
    app.router.add_post("/verify", handle)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    server = RewardServer(f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}")
    try:
        yield server
    finally:
        await runner.cleanup()


def answering(score: Callable[[dict[str, Any]], dict[str, Any]]) -> Behaviour:
    """Answers every item with `score(item)`, its id added."""

    async def behave(body: dict[str, Any]) -> web.Response:
        return web.json_response({"results": [{"id": item["id"], **score(item)} for item in body["items"]]})

    return behave


async def hang(body: dict[str, Any]) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
