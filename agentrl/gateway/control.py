"""The control API: sessions, rewards, trajectories, engines, runs (design §7). It needs the admin key, or a run's key
for what is that run's, except that a session's own key may send its reward and that `/health` is open.

What each operation answers, errors included, is listed in `openapi`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException as StarletteHTTPException

from agentrl.gateway import dialects
from agentrl.gateway.auth import Controller
from agentrl.gateway.control_bodies import (
    AddEngine,
    Engines,
    Finished,
    FinishSession,
    Health,
    OpenRun,
    OpenSession,
    Rewarded,
    RunOpened,
    SessionOpened,
    SetReward,
    TellEngine,
)
from agentrl.gateway.dialects.errors import retry_headers
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.sampling import checked_pins
from agentrl.gateway.session import Session
from agentrl.types import Limits, Task

logger = logging.getLogger(__name__)


def add_routes(app: FastAPI, gateway: Gateway) -> None:
    async def controller(request: Request) -> Controller:
        return gateway.auth.require_controller(request.headers)

    guarded = APIRouter(route_class=_guarded(gateway))
    _add_session_routes(guarded, gateway, Depends(controller))
    _add_engine_routes(guarded, gateway, Depends(controller))
    _add_reward_route(guarded, gateway)
    _add_admin_routes(guarded, gateway)
    app.include_router(guarded)

    @app.get("/health")
    async def health() -> Response:
        return _answer(Health())

    _add_error_handlers(app)


def _guarded(gateway: Gateway) -> type[APIRoute]:
    """Routes that look at a body only after the key."""

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def after_key(request: Request) -> Response:
                gateway.auth.require_any(request.headers)
                return await handle(request)

            return after_key

    return Guarded


async def opened(gateway: Gateway, controller: Controller, body: OpenSession) -> Response:
    metadata = body.metadata or {}
    if controller.run_id is not None:
        metadata = metadata | {"run_id": controller.run_id}
    session, key = await gateway.open(
        body.session_id,
        run_id=controller.run_id,
        task=_converted("task", body.task, Task),
        metadata=metadata,
        pins=checked_pins(body.sampling or {}, body.mode),
        limits=_converted("limits", body.limits, Limits),
        mode=body.mode,
        reward_by=body.reward_by,
        history=body.history,
        across_swaps=body.across_swaps,
    )
    base_url = f"{gateway.base_url}/sessions/{session.id}/v1"
    return _answer(SessionOpened(session.id, base_url, key), 201)


async def finished(gateway: Gateway, session: Session, body: FinishSession | None) -> Response:
    body = body or FinishSession()
    messages = session.conversation() if body.conversation else None
    trajectory = await gateway.finish(session, body.stop_reason, limit_first=body.limit_first)
    summary = Finished(
        session_id=trajectory.session_id,
        stop_reason=trajectory.stop_reason,
        reward=trajectory.reward,
        calls=len(trajectory.calls),
        rows=len(trajectory.rows),
        trained_tokens=sum(row.loss_mask.count(1) for row in trajectory.rows),
        dropped=trajectory.dropped,
        drift=await gateway.drift(session),
        unanswered=len(session.unanswered),
        messages=messages,
    )
    return _answer(summary)


def _add_session_routes(app: APIRouter, gateway: Gateway, who: Any) -> None:
    async def its_session(session_id: str, controller: Controller = who) -> Session:
        return controller.check(await gateway.session(session_id))

    named = Depends(its_session)

    @app.post("/sessions", status_code=201)
    async def open_session(body: OpenSession, controller: Controller = who) -> Response:
        return await opened(gateway, controller, body)

    @app.post("/sessions/{session_id}/finish")
    async def finish_session(body: FinishSession | None = None, session: Session = named) -> Response:
        return await finished(gateway, session, body)

    @app.get("/sessions/{session_id}/trajectory")
    async def get_trajectory(session: Session = named) -> Response:
        return _answer(await gateway.trajectory(session))

    @app.delete("/sessions/{session_id}", status_code=204)
    async def forget_session(session: Session = named) -> Response:
        await gateway.forget(session.id)
        return Response(status_code=204)


def _add_reward_route(app: APIRouter, gateway: Gateway) -> None:
    async def rewarded(request: Request, session_id: str) -> Session:
        session = await gateway.auth.session_of(request.headers, session_id)
        if session.reward_by == "admin":
            gateway.auth.require_controller(request.headers)
        return session

    its_session = Depends(rewarded)

    @app.post("/sessions/{session_id}/reward")
    async def set_reward(body: SetReward, session: Session = its_session) -> Response:
        await gateway.reward(session, body.reward, body.components, body.call_id, body.call_rewards)
        return _answer(Rewarded(session.id, body.reward, body.call_id))


def _add_engine_routes(app: APIRouter, gateway: Gateway, who: Any) -> None:
    """A run's key sees the engines that serve it and changes the run's own; the admin's, those of all others."""
    pools = gateway.pools

    @app.get("/engines")
    async def list_engines(controller: Controller = who) -> Response:
        pool = pools.serving(controller.run_id)
        return _answer(Engines(pool.table.current_version, [pool.status(engine) for engine in pool.table]))

    @app.post("/engines", status_code=201)
    async def add_engine(body: AddEngine, controller: Controller = who) -> Response:
        engine = await pools.add(controller.run_id, body.url, body.id, body.version)
        return _answer(pools.own(controller.run_id).status(engine), 201)

    @app.put("/engines/{engine_id}")
    async def tell_engine(engine_id: str, body: TellEngine, controller: Controller = who) -> Response:
        pool = pools.own(controller.run_id)
        return _answer(pool.status(pool.tell(engine_id, version=body.version, routable=body.routable)))

    @app.delete("/engines/{engine_id}", status_code=204)
    async def remove_engine(engine_id: str, controller: Controller = who) -> Response:
        await pools.remove(controller.run_id, engine_id)
        return Response(status_code=204)


def _add_admin_routes(app: APIRouter, gateway: Gateway) -> None:
    async def admin(request: Request) -> None:
        gateway.auth.require_admin(request.headers)

    only = [Depends(admin)]

    @app.post("/runs", status_code=201, dependencies=only)
    async def open_run(body: OpenRun) -> Response:
        """The key of a run. The same run always has the same key."""
        return _answer(RunOpened(body.run_id, gateway.auth.key_of_run(body.run_id)), 201)

    @app.get("/metrics", dependencies=only)
    async def metrics() -> Response:
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_error_handlers(app: FastAPI) -> None:
    def answer(refusal: Refusal, path: str = "") -> Response:
        headers = retry_headers(refusal)
        return Response(dialects.error_of(path, refusal), refusal.status, headers, media_type="application/json")

    @app.exception_handler(Refusal)
    async def refused(request: Request, refusal: Refusal) -> Response:
        return answer(refusal)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"][1:])
        return answer(invalid(field or None, f"{field or 'body'}: {first['msg'].removeprefix('Value error, ')}"))

    @app.exception_handler(StarletteHTTPException)
    async def not_routed(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        code = "not_found" if error.status_code == 404 else "http_error"
        response = answer(Refusal(error.status_code, code, message), request.url.path)
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed inside the gateway", request.method, request.url.path, exc_info=error)
        return answer(Refusal(500, "internal_error", "the gateway failed on this request; its log says why"))


def _answer(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _converted(field: str, value: dict[str, Any] | None, kind: Any) -> Any:
    if value is None:
        return None
    unknown = sorted(set(value) - set(kind.__struct_fields__))
    if unknown:
        known = ", ".join(kind.__struct_fields__)
        raise invalid(f"{field}.{unknown[0]}", f"{field}.{unknown[0]} is unknown; known: {known}")
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise invalid(field, f"{field}: {error}") from error
