"""A key in front of everything that a vLLM server answers. Loaded by vLLM (`--middleware`) in servers on a network.

vLLM's own `--api-key` opens the model's endpoints only: pausing, updating weights and metrics stay open to anybody.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY_VARIABLE = "AGENTRL_ENGINE_KEY"
MIDDLEWARE = f"{__name__}.KeyGuard"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


class KeyGuard:
    """ASGI middleware: without `Authorization: Bearer KEY` every request gets 401, health checks included."""

    def __init__(self, app: App) -> None:
        """Raises KeyError without a key in the environment, and so the server does not start."""
        self._app = app
        self._digest = _digest(os.environ[KEY_VARIABLE].encode())

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self._opens(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            body = b'{"error":"no key, or a wrong one; send it as Authorization: Bearer KEY"}'
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close", "code": 1008})

    def _opens(self, scope: Message) -> bool:
        given = [value for name, value in scope.get("headers", ()) if name.lower() == b"authorization"]
        scheme, _, key = (given[0] if len(given) == 1 else b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(_digest(key.strip()), self._digest)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
