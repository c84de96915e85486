"""A session at an OpenEnv server, over its WebSocket protocol: reset, step, close."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from msgspec import Struct

from agentrl.errors import EnvironmentFault, EnvironmentTimeout

MAX_MESSAGE = 100 * 1024 * 1024  # bytes, as OpenEnv's own client has it
HEARTBEAT_S = 20.0
CONNECT_TIMEOUT_S = 10.0


class Answer(Struct, frozen=True):
    """What a server says to a reset or a step."""

    observation: dict[str, Any]
    reward: float | None
    done: bool


class InvalidAction(Exception):
    """The server does not take this action, in words for the policy."""


class OpenEnvSession:
    """One WebSocket, which is one environment at the server. Belongs to one event loop.

    Every method raises EnvironmentFault, or EnvironmentTimeout after `timeout_s` seconds; the session is then lost.
    """

    def __init__(self, url: str, *, timeout_s: float, header_env: Mapping[str, str], errors_to_policy: bool) -> None:
        self._url = _http(url)
        self._timeout_s = timeout_s
        self._header_env = header_env
        self._errors_to_policy = errors_to_policy
        self._http: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def schema(self) -> dict[str, Any]:
        """JSON schema of an action; {} where the server does not publish one."""
        try:
            async with self._client().get(f"{self._url}/schema") as response:
                if response.status == 404:
                    return {}
                response.raise_for_status()
                return dict((await response.json()).get("action") or {})
        except TimeoutError:
            raise self._timed_out("did not say its schema") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise self._fault(f"cannot be asked for its schema: {error}") from error

    async def reset(self, data: Mapping[str, Any]) -> Answer:
        try:
            return await self._ask("reset", data)
        except InvalidAction as error:
            raise self._fault(f"refused to reset: {error}") from error

    async def step(self, action: Mapping[str, Any]) -> Answer:
        """Raises InvalidAction for an action that is not of the server's schema; the session goes on."""
        return await self._ask("step", action)

    async def close(self) -> None:
        socket, self._socket = self._socket, None
        client, self._http = self._http, None
        try:
            if socket is not None and not socket.closed:
                await socket.send_str('{"type": "close"}')
                await socket.close()
        except (aiohttp.ClientError, OSError):
            pass  # it is gone, which is what was wanted
        finally:
            if client is not None:
                await client.close()

    async def _ask(self, kind: str, data: Mapping[str, Any]) -> Answer:
        try:
            socket = await self._connected()
            await socket.send_str(orjson.dumps({"type": kind, "data": dict(data)}).decode())
            raw = await socket.receive(self._timeout_s)
        except TimeoutError:
            await self.close()  # its answer would be taken for that of the next request
            raise self._timed_out(f"did not answer a {kind}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise self._fault(f"was lost at a {kind}: {error}") from error
        if raw.type is not aiohttp.WSMsgType.TEXT:
            raise self._fault(f"closed the connection at a {kind}")
        return self._answer(kind, raw.data)

    def _answer(self, kind: str, raw: str) -> Answer:
        try:
            message = orjson.loads(raw)
            data = message["data"]
            if message["type"] == "error":
                raise self._error(kind, data)
            return Answer(dict(data["observation"]), _number(data.get("reward")), bool(data.get("done", False)))
        except (ValueError, KeyError, TypeError) as error:
            raise self._fault(f"answered a {kind} with something else: {raw[:200]}") from error

    def _error(self, kind: str, data: Mapping[str, Any]) -> Exception:
        code, text = str(data.get("code")), str(data.get("message"))
        if code == "VALIDATION_ERROR":
            faults = data.get("errors") or []
            parts = [f"{'.'.join(map(str, fault.get('loc', ())))}: {fault.get('msg')}" for fault in faults]
            return InvalidAction("; ".join(parts) or text)
        if code == "EXECUTION_ERROR" and self._errors_to_policy:
            return InvalidAction(text)
        return self._fault(f"failed at a {kind}: {text} ({code})")

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        if self._socket is None:
            self._socket = await self._client().ws_connect(
                f"{self._url}/ws", max_msg_size=MAX_MESSAGE, heartbeat=HEARTBEAT_S
            )
        return self._socket

    def _client(self) -> aiohttp.ClientSession:
        if self._http is None:
            headers = {name: os.environ[variable] for name, variable in self._header_env.items()}
            timeout = aiohttp.ClientTimeout(total=self._timeout_s, sock_connect=CONNECT_TIMEOUT_S)
            self._http = aiohttp.ClientSession(headers=headers, timeout=timeout)
        return self._http

    def _fault(self, what: str) -> EnvironmentFault:
        return EnvironmentFault(f"the OpenEnv server {self._url} {what}")

    def _timed_out(self, what: str) -> EnvironmentTimeout:
        return EnvironmentTimeout(f"the OpenEnv server {self._url} {what} within {self._timeout_s:g} s")


def _number(reward: Any) -> float | None:
    return None if reward is None else float(reward)


def _http(url: str) -> str:
    """A server's base URL for both of its protocols; OpenEnv's users write ws:// as often."""
    for web_socket, http in (("ws://", "http://"), ("wss://", "https://")):
        if url.startswith(web_socket):
            url = http + url.removeprefix(web_socket)
    return url.rstrip("/").removesuffix("/ws")
