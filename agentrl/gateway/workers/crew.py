"""What a worker does before its own application sees a request: each goes to the worker that it belongs to.

A session's key names its worker; so does the session in the path, or in X-Session-ID. Worker 0 makes the changes to
engines, all answer together for engines, metrics and health, and whatever else there is any of them can do. A request
that came from another worker is carried out here.
"""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl.gateway import dialects
from agentrl.gateway.auth import given_key
from agentrl.gateway.control_bodies import Engines
from agentrl.gateway.direct import again
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.keys import same_key
from agentrl.gateway.model_calls import refused
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.workers.board import Board
from agentrl.gateway.workers.engines import BOARD, SharedEngines
from agentrl.gateway.workers.merge import merged_engines, merged_metrics
from agentrl.gateway.workers.peers import FROM, INTERNAL, Peers, restarting
from agentrl.gateway.workers.placement import Placement
from agentrl.gateway.workers.seat import LEADER, Seat
from agentrl.types import EngineStatus

logger = logging.getLogger(__name__)

HEALTH_S = 2.0
MERGE_S = 15.0
SESSIONS, ENGINES = "/sessions", "/engines"


class Captured(Struct):
    """A response of the application, not sent yet."""

    status: int = 500
    headers: list[tuple[bytes, bytes]] = []
    body: bytes = b""

    @property
    def succeeded(self) -> bool:
        return self.status < 300

    async def take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message["headers"])
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    async def send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body})


class Crew:
    """`app` answers for this worker alone."""

    def __init__(self, app: ASGIApp, gateway: Gateway, seat: Seat, peers: Peers, engines: SharedEngines) -> None:
        self._app = app
        self._gateway = gateway
        self._at: Placement = seat.at
        self._others = seat.others
        self._key = seat.key
        self._peers = peers
        self._engines = engines
        self._opened = 0  # sessions without a given id, over all workers in turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            await self._route(scope, receive, send)
        except ClientDisconnect:
            return
        except Refusal as refusal:  # of ours: the application answers its own
            await refused(refusal, dialects.error_of(scope["path"], refusal))(scope, receive, send)
        except ConnectionError as error:  # nothing more to say to the client, who sees that the answer breaks off
            logger.error("%s", error)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        if (internal := request.headers.get(INTERNAL)) is not None:
            _strip(scope)
            if same_key(internal, self._key):
                self._peers.heard_of(int(request.headers.get(FROM, "0")))
                await self._from_worker(scope, receive, send)
                return
        path, method = scope["path"], scope["method"]
        owner = self._owner(request, path)
        if path == "/health":
            await self._healthy()
            await self._app(scope, receive, send)
        elif owner is not None:
            await self._hand_to(owner, scope, receive, send)
        elif path == SESSIONS and method == "POST":
            await self._open(scope, receive, send)
        elif path == ENGINES and method == "GET":
            await self._list_engines(scope, receive, send)
        elif path == ENGINES or path.startswith(f"{ENGINES}/"):
            await self._change_engines(scope, receive, send)
        elif path == "/metrics":
            await self._metrics(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _owner(self, request: Request, path: str) -> int | None:
        """The worker that a session is at. A key comes first: only its own worker can say whether it is one."""
        headers = request.headers
        with suppress(Refusal):
            if (owner := self._at.owner_of_key(given_key(headers))) is not None:
                return owner
        if path.startswith(f"{SESSIONS}/"):
            return self._at.owner(path[len(SESSIONS) + 1 :].partition("/")[0])
        if "x-session-id" in headers and path.rpartition("/v1/")[1]:
            return self._at.owner(headers["x-session-id"])
        return None

    async def _hand_to(self, owner: int, scope: Scope, receive: Receive, send: Send) -> None:
        if owner == self._at.index:
            await self._app(scope, receive, send)
        else:
            await self._peers.forward(owner, scope, receive, send)

    async def _from_worker(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != BOARD:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        if scope["method"] == "PUT":
            await self._engines.apply(msgspec.json.decode(await request.body(), type=Board))
            answer = Response(msgspec.json.encode(self._engines.known()))
        elif int(request.query_params["epoch"]) < self._engines.epoch:
            answer = Response(msgspec.json.encode(self._engines.board()))
        else:
            answer = Response(status_code=204)
        await answer(scope, receive, send)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A session with a given id is its worker's. The others go round; their worker gives them an id of its own."""
        data = await Request(scope, receive).body()
        session_id = None
        with suppress(ValueError, RecursionError, AttributeError):
            session_id = json.loads(data).get("session_id")
        if isinstance(session_id, str):
            owner = self._at.owner(session_id)
        else:
            workers = sorted([self._at.index, *self._peers.up])
            owner = workers[self._opened % len(workers)]
            self._opened += 1
        await self._hand_to(owner, scope, again(data, receive), send)

    async def _list_engines(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._here(scope, receive)
        if answer.succeeded:
            others = await self._of_others(ENGINES, scope)
            known = [msgspec.json.decode(body, type=Engines) for body in (answer.body, *others)]
            _write(answer, msgspec.json.encode(merged_engines(known)))
        await answer.send(send)

    async def _change_engines(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._at.index != LEADER:
            await self._peers.forward(LEADER, scope, receive, send)
            return
        request = Request(scope, receive)
        data = await request.body()
        async with self._engines.changing:
            answer = await self._here(scope, again(data, receive))
            if answer.succeeded:
                controller = self._gateway.auth.require_controller(request.headers)
                await self._publish(controller.run_id or "", data, answer, told=scope["method"] == "PUT")
        await answer.send(send)

    async def _publish(self, run_id: str, data: bytes, answer: Captured, *, told: bool) -> None:
        """Writes into the answer what all workers know of the engine that was changed."""
        changed = msgspec.json.decode(answer.body, type=EngineStatus) if answer.body else None
        version_told = told and changed is not None and json.loads(data).get("version") is not None
        known, silent = await self._engines.publish((run_id, changed.id) if version_told and changed else None)
        if told and silent:
            raise restarting(silent[0])
        if changed is not None:
            unknown = [Engines(0, [])] * len(silent)
            merged = merged_engines([of_worker.get(run_id, Engines(0, [])) for of_worker in known] + unknown)
            status = next((engine for engine in merged.engines if engine.id == changed.id), changed)
            _write(answer, msgspec.json.encode(status))

    async def _metrics(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = await self._here(scope, receive)
        if answer.succeeded:
            _write(answer, merged_metrics([answer.body, *await self._of_others("/metrics", scope)]))
        await answer.send(send)

    async def _healthy(self) -> None:
        """Raises Refusal (503) when a worker is down or silent."""
        for worker in set(self._others) - set(self._peers.up):
            raise restarting(worker)
        await asyncio.gather(*(self._peers.ask(worker, "GET", "/health", limit_s=HEALTH_S) for worker in self._others))

    async def _here(self, scope: Scope, receive: Receive) -> Captured:
        answer = Captured()
        await self._app(scope, receive, answer.take)
        return answer

    async def _of_others(self, path: str, scope: Scope) -> list[bytes]:
        """What the workers that are up answer to whom has the keys of this request. Raises Refusal (503)."""
        keys = [(name, value) for name, value in scope["headers"] if name in (b"authorization", b"x-api-key")]

        async def ask(worker: int) -> bytes:
            status, body = await self._peers.ask(worker, "GET", path, headers=keys, limit_s=MERGE_S)
            if status != 200:
                raise restarting(worker)
            return body

        return list(await asyncio.gather(*map(ask, self._peers.up)))


def _write(answer: Captured, body: bytes) -> None:
    answer.body = body
    answer.headers = [(name, value) for name, value in answer.headers if name != b"content-length"]
    answer.headers.append((b"content-length", str(len(body)).encode()))


def _strip(scope: Scope) -> None:
    own = (INTERNAL.encode(), FROM.encode())
    scope["headers"] = [(name, value) for name, value in scope["headers"] if name not in own]
