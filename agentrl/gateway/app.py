"""HTTP in front of a `Gateway`: the dialects (hot, without FastAPI's own parsing), and the control API beside them."""

from __future__ import annotations

import time

import orjson
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.gateway import control, dialects
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.model_calls import Endpoint, model_call, refused
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer

PREFIXES = ("", "/sessions/{session_id}")


def build_app(gateway: Gateway, renderer: Renderer) -> FastAPI:
    app = FastAPI(title="agentrl gateway", docs_url=None, redoc_url=None, openapi_url=None)
    for dialect in dialects.ALL:
        endpoint = model_call(gateway, dialect, renderer)
        for prefix in PREFIXES:
            app.router.routes.append(Route(prefix + dialect.path, endpoint, methods=["POST"]))
    for prefix in PREFIXES:
        app.router.routes.append(Route(f"{prefix}/v1/models", _models(gateway), methods=["GET"]))
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
