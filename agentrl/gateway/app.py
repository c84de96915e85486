"""HTTP in front of a `Gateway`: the dialects (hot, without FastAPI's own parsing), and the control API beside them."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.gateway import control, dialects
from agentrl.gateway.dialects.base import Answering, Dialect
from agentrl.gateway.dialects.errors import openai_error, retry_headers
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(gateway: Gateway, renderer: Renderer) -> FastAPI:
    app = FastAPI(title="agentrl gateway", docs_url=None, redoc_url=None, openapi_url=None)
    answering = Answering(gateway.config.model_name, renderer.token_bytes)
    for prefix in ("/v1", "/sessions/{session_id}/v1"):
        for dialect in dialects.ALL:
            endpoint = _model_call(gateway, dialect, answering)
            app.router.routes.append(Route(prefix + dialect.path, endpoint, methods=["POST"]))
        app.router.routes.append(Route(f"{prefix}/models", _models(gateway), methods=["GET"]))
    control.add_routes(app, gateway)
    app.add_middleware(BodyLimit, max_bytes=gateway.config.max_body_bytes)
    return app


class BodyLimit:
    """Refuses bodies of more than `max_bytes` by their announced length; cuts off those that announce none."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if int(announced) > self._max_bytes:
            message = f"the body has {int(announced)} bytes and {self._max_bytes} are allowed; raise max_body_bytes"
            refusal = Refusal(413, "body_too_large", message)
            await refused(refusal, openai_error(refusal))(scope, receive, send)
            return
        left = self._max_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            return message if left >= 0 else {"type": "http.disconnect"}

        await self._app(scope, bounded, send)


def refused(refusal: Refusal, body: bytes) -> Response:
    return Response(body, refusal.status, retry_headers(refusal), media_type="application/json")


def _model_call(gateway: Gateway, dialect: Dialect[Any], answering: Answering) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        started = time.perf_counter()
        try:
            session = await gateway.auth.session_of(request.headers, request.path_params.get("session_id"))
            turn, decoded = dialect.decode(await request.body())
            gone = asyncio.create_task(_disconnected(request))
            try:
                call = await gateway.turns.run(session, turn, dialect.call_prefix + uuid.uuid4().hex, gone)
            finally:
                gone.cancel()
            response = Response(dialect.encode(call, decoded, answering), media_type="application/json")
        except Refusal as refusal:
            response = refused(refusal, dialect.error(refusal))
        except ClientDisconnect:
            response = Response(status_code=499)
        except Exception:
            logger.exception("a %s request failed inside the gateway", dialect.name)
            failure = Refusal(500, "internal_error", "the gateway failed on this request; its log says why")
            response = refused(failure, dialect.error(failure))
        gateway.metrics.requests.labels(dialect.name, str(response.status_code)).inc()
        gateway.metrics.latency.labels(dialect.name).observe(time.perf_counter() - started)
        return response

    return endpoint


def _models(gateway: Gateway) -> Endpoint:
    model = {"id": gateway.config.model_name, "object": "model", "created": int(time.time()), "owned_by": "agentrl"}
    body = orjson.dumps({"object": "list", "data": [model]})

    async def endpoint(request: Request) -> Response:
        try:
            if "session_id" in request.path_params:
                await gateway.auth.session_of(request.headers, request.path_params["session_id"])
            gateway.auth.require_any(request.headers)
        except Refusal as refusal:
            return refused(refusal, openai_error(refusal))
        return Response(body, media_type="application/json")

    return endpoint


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
