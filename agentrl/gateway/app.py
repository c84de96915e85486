"""HTTP in front of a `Gateway`: the dialects (hot, without FastAPI's own parsing), and the control API beside them."""

from __future__ import annotations

import time
from collections.abc import Callable

import orjson
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.gateway import control, dialects, openapi
from agentrl.gateway.dialects.count_tokens import decode_count, encode_count
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.messages import MESSAGES
from agentrl.gateway.direct import Direct
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.model_calls import Endpoint, model_call, refused, unforeseen
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer

PREFIXES = ("", "/sessions/{session_id}")


def build_app(gateway: Gateway, renderer: Renderer, before: Callable[[ASGIApp], ASGIApp] | None = None) -> ASGIApp:
    """`before` makes of the application what sees every request first, once its size is bounded."""
    app = FastAPI(
        title="agentrl gateway",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    endpoints = {dialect.path: model_call(gateway, dialect, renderer) for dialect in dialects.ALL}
    endpoints[f"{MESSAGES.path}/count_tokens"] = _count_tokens(gateway)
    model = {"id": gateway.config.model_name, "object": "model", "created": int(time.time()), "owned_by": "agentrl"}
    models = _fixed(gateway, orjson.dumps({"object": "list", "data": [model]}))
    one_model = _fixed(gateway, orjson.dumps(model), model=gateway.config.model_name)
    for prefix in PREFIXES:
        for path, endpoint in endpoints.items():
            app.router.routes.append(Route(prefix + path, endpoint, methods=["POST"]))
        app.router.routes.append(Route(f"{prefix}/v1/models", models, methods=["GET"]))
        app.router.routes.append(Route(f"{prefix}/v1/models/{{model:path}}", one_model, methods=["GET"]))
    control.add_routes(app, gateway)
    described = orjson.dumps(openapi.document(app, dialects.ALL, PREFIXES))
    app.router.routes.append(Route("/openapi.json", _fixed(gateway, described), methods=["GET"]))
    answering: ASGIApp = Direct(app, gateway, endpoints)
    return BodyLimit(before(answering) if before else answering, max_bytes=gateway.config.max_body_bytes)


class BodyLimit:
    """Refuses bodies of more than `max_bytes`: at once where their length is announced, else when it is reached."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), None)
        if announced is None:
            await self._counted(scope, receive, send)
        elif int(announced) > self._max_bytes:
            await self._refuse(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """To the application, a client that sends too much has left; the client is told why."""
        left = self._max_bytes

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            return message if left >= 0 else {"type": "http.disconnect"}

        async def unless_too_large(message: Message) -> None:
            if left >= 0:
                await send(message)

        await self._app(scope, bounded, unless_too_large)
        if left < 0:
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = f"the body has more than the {self._max_bytes} bytes that are allowed; raise max_body_bytes"
        refusal = Refusal(413, "body_too_large", message)
        await refused(refusal, dialects.error_of(scope["path"], refusal))(scope, receive, send)


def _count_tokens(gateway: Gateway) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            await gateway.pacer.turn()
            session = await gateway.auth.session_of(request.headers, request.path_params.get("session_id"))
            [plan] = await gateway.turns.plan(session, decode_count(await request.body()), "")
        except Refusal as refusal:
            return refused(refusal, MESSAGES.error(refusal))
        except ClientDisconnect:
            return Response(status_code=499)
        except Exception:
            failure = unforeseen(MESSAGES.name)
            return refused(failure, MESSAGES.error(failure))
        return Response(encode_count(len(plan.prompt_ids)), media_type="application/json")

    return endpoint


def _fixed(gateway: Gateway, body: bytes, model: str | None = None) -> Endpoint:
    """For whoever has a key; where the path names a model, of that one alone."""

    async def endpoint(request: Request) -> Response:
        try:
            if "session_id" in request.path_params:
                await gateway.auth.session_of(request.headers, request.path_params["session_id"])
            gateway.auth.require_any(request.headers)
            if model is not None and (asked := request.path_params["model"]) != model:
                raise Refusal(404, "model_not_found", f"there is no model {asked!r}; there is {model!r}", param="model")
        except Refusal as refusal:
            return refused(refusal, openai_error(refusal))
        return Response(body, media_type="application/json")

    return endpoint
