"""The short way to a model call: past the web framework's routing and middleware, which cost as much as the call."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from agentrl.gateway.model_calls import Endpoint

SESSIONS = "/sessions/"


class Direct:
    """POSTs to a path of `endpoints`, bare or below a session, are answered here; all else goes to `app`.

    The endpoints answer for their own exceptions.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            path, path_params = scope["path"], {}
            if path.startswith(SESSIONS):
                session_id, _, rest = path[len(SESSIONS) :].partition("/")
                path, path_params = f"/{rest}", {"session_id": session_id}
            if (endpoint := self._endpoints.get(path)) is not None:
                scope["path_params"] = path_params
                response = await endpoint(Request(scope, receive))
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)
