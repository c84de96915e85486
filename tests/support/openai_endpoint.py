"""An OpenAI-compatible endpoint for tests: answers by a policy function, and fails when told to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from agentrl.messages import Message, assistant

Policy = Callable[[list[Message]], Message | str]


class OpenAIEndpoint:
    def __init__(self, policy: Policy, *, key: str | None = None, limit_name: str = "max_tokens") -> None:
        self.bodies: list[dict[str, Any]] = []
        self.url = ""
        self.fail_with: int | None = None
        self.refuse_with: tuple[str | int, str] | None = None  # code and message of a 400
        self._policy = policy
        self._key = key
        self._limit_name = limit_name

    async def chat(self, request: web.Request) -> web.Response:
        if self._key is not None and request.headers.get("Authorization") != f"Bearer {self._key}":
            return refused(401, "invalid_api_key", "wrong key")
        if self.fail_with is not None:
            return refused(self.fail_with, "server_error", "out of order")
        if self.refuse_with is not None:
            return refused(400, *self.refuse_with)
        body = await request.json()
        other = {"max_tokens": "max_completion_tokens", "max_completion_tokens": "max_tokens"}[self._limit_name]
        if other in body:
            return refused(400, "unsupported_parameter", f"use {self._limit_name!r} instead of {other!r}")
        self.bodies.append(body)
        answer = self._policy([Message(message) for message in body["messages"]])
        message = assistant(answer) if isinstance(answer, str) else answer
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "c", "choices": [choice], "usage": {"completion_tokens": 3}})


def refused(status: int, code: str | int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status)


@asynccontextmanager
async def serving(endpoint: OpenAIEndpoint) -> AsyncIterator[OpenAIEndpoint]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    endpoint.url = f"http://{host}:{port}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()
