"""The short way to what every episode asks for: past the web framework's routing, middleware and body handling, which
cost as much as the work itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.gateway.control import finished, opened
from agentrl.gateway.control_bodies import FinishSession, OpenSession
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.model_calls import Endpoint, refused, unforeseen
from agentrl.gateway.refusal import Refusal

SESSIONS = "/sessions"


class Direct:
    """POSTs to a path of `endpoints`, bare or below a session, are answered here, and so are the opening and finishing
    of a session where nothing is wrong with the request. All else goes to `app`, which finds the words for it.
    """

    def __init__(self, app: ASGIApp, gateway: Gateway, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._gateway = gateway
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        path, session_id = scope["path"], None
        if path.startswith(f"{SESSIONS}/"):
            session_id, _, rest = path[len(SESSIONS) + 1 :].partition("/")
            path = f"/{rest}"
        if (endpoint := self._endpoints.get(path)) is not None:
            scope["path_params"] = {} if session_id is None else {"session_id": session_id}
            response = await endpoint(Request(scope, receive))
            await response(scope, receive, send)
        elif path == (SESSIONS if session_id is None else "/finish"):
            await self._control(session_id, scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _control(self, session_id: str | None, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._gateway.pacer.turn()
            controller = self._gateway.auth.require_controller(request.headers)
            data = await request.body()
        except ClientDisconnect:
            return
        except Refusal as refusal:
            await _refused(refusal)(scope, receive, send)
            return
        try:
            content = json.loads(data) if request.headers.get("content-type") == "application/json" else None
            body = (OpenSession if session_id is None else FinishSession).model_validate(content)
        except (ValueError, RecursionError):
            await self._app(scope, again(data, receive), send)
            return
        try:
            if isinstance(body, OpenSession):
                response = await opened(self._gateway, controller, body)
            else:
                assert session_id is not None
                session = controller.check(await self._gateway.session(session_id))
                response = await finished(self._gateway, session, body)
        except Refusal as refusal:
            response = _refused(refusal)
        except Exception:
            response = _refused(unforeseen("control"))
        await response(scope, receive, send)


def _refused(refusal: Refusal) -> Response:
    return refused(refusal, openai_error(refusal))


def again(data: bytes, receive: Receive) -> Receive:
    """A body that was read, to be read once more."""
    left = [data]

    async def replayed() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed
