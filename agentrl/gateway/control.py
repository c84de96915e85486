"""The control API: sessions, rewards, trajectories, engines (design §7). All of it needs the admin key, except that a
session's own key may send its reward and that `/health` is open.
"""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, field_validator
from starlette.exceptions import HTTPException as StarletteHTTPException

from agentrl.gateway import dialects
from agentrl.gateway.auth import Controller
from agentrl.gateway.dialects.errors import retry_headers
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.routing import EngineState
from agentrl.gateway.sampling import checked_pins
from agentrl.gateway.session import Session
from agentrl.types import Limits, Task, Trajectory

logger = logging.getLogger(__name__)


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _strict(value: Any) -> Any:
    """Python's parser lets NaN and half characters through, which no store takes and no answer can carry."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not strict JSON: {error}") from error
    return value


Document = Annotated[dict[str, Any], AfterValidator(_strict)]
Text = Annotated[str, AfterValidator(_strict)]


class OpenSession(Body):
    session_id: str | None = None
    task: Document | None = None
    metadata: Document | None = None
    sampling: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    mode: Literal["train", "eval"] = "train"
    reward_by: Literal["session", "admin"] = "session"
    history: Literal["append", "rerender"] = "append"
    across_swaps: bool = False

    @field_validator("metadata")
    @classmethod
    def _place_in_a_group(cls, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        group_id, index = (metadata or {}).get("group_id"), (metadata or {}).get("index")
        if group_id is not None and not isinstance(group_id, str):
            raise ValueError(f"its group_id is {group_id!r}, a string is needed")
        if index is not None and type(index) is not int:
            raise ValueError(f"its index is {index!r}, a whole number is needed")
        return metadata


class SetReward(Body):
    reward: FiniteFloat | None
    call_id: str | None = None
    components: dict[Text, FiniteFloat | None] | None = None


class FinishSession(Body):
    stop_reason: Text | None = None


class AddEngine(Body):
    url: str = Field(pattern=r"^https?://\S+$")
    id: str | None = None
    version: int | None = Field(default=None, ge=0)


class OpenRun(Body):
    run_id: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")


class TellEngine(Body):
    version: int | None = Field(default=None, ge=0)
    routable: bool | None = None


def add_routes(app: FastAPI, gateway: Gateway) -> None:
    async def controller(request: Request) -> Controller:
        return gateway.auth.require_controller(request.headers)

    async def admin(request: Request) -> None:
        gateway.auth.require_admin(request.headers)

    _add_session_routes(app, gateway, Depends(controller))
    _add_engine_routes(app, gateway, Depends(controller))
    _add_reward_route(app, gateway)
    for_admin = APIRouter(dependencies=[Depends(admin)])

    @for_admin.post("/runs", status_code=201)
    async def open_run(body: OpenRun) -> dict[str, str]:
        """The key of a run. The same run always has the same key."""
        return {"run_id": body.run_id, "run_key": gateway.auth.key_of_run(body.run_id)}

    @for_admin.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(for_admin)
    _add_error_handlers(app)


def _add_session_routes(app: FastAPI, gateway: Gateway, who: Any) -> None:
    async def its_session(session_id: str, controller: Controller = who) -> Session:
        return controller.check(await gateway.session(session_id))

    named = Depends(its_session)

    @app.post("/sessions", status_code=201)
    async def open_session(body: OpenSession, controller: Controller = who) -> dict[str, str]:
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
        return {"session_id": session.id, "base_url": base_url, "api_key": key}

    @app.post("/sessions/{session_id}/finish")
    async def finish(body: FinishSession | None = None, session: Session = named) -> dict[str, Any]:
        trajectory = await gateway.finish(session, body.stop_reason if body else None)
        return _summary(trajectory) | {"drift": msgspec.to_builtins(await gateway.drift(session))}

    @app.get("/sessions/{session_id}/trajectory")
    async def trajectory(session: Session = named) -> Response:
        found = await gateway.trajectory(session)
        return Response(msgspec.json.encode(found), media_type="application/json")

    @app.delete("/sessions/{session_id}", status_code=204)
    async def forget(session: Session = named) -> Response:
        await gateway.forget(session.id)
        return Response(status_code=204)


def _add_reward_route(app: FastAPI, gateway: Gateway) -> None:
    async def rewarded(request: Request, session_id: str) -> Session:
        session = await gateway.auth.session_of(request.headers, session_id)
        if session.reward_by == "admin":
            gateway.auth.require_controller(request.headers)
        return session

    its_session = Depends(rewarded)

    @app.post("/sessions/{session_id}/reward")
    async def set_reward(body: SetReward, session: Session = its_session) -> dict[str, Any]:
        await gateway.reward(session, body.reward, body.components, body.call_id)
        return {"session_id": session.id, "reward": body.reward, "call_id": body.call_id}


def _add_engine_routes(app: FastAPI, gateway: Gateway, who: Any) -> None:
    """A run's key sees and changes the run's own engines; the admin's, those that serve all others."""

    def answer(pool: EnginePool, engine: EngineState) -> dict[str, Any]:
        return dict(msgspec.to_builtins(pool.status(engine)))

    @app.get("/engines")
    async def engines(controller: Controller = who) -> dict[str, Any]:
        pool = gateway.pools.serving(controller.run_id)
        return {
            "current_version": pool.table.current_version,
            "engines": [answer(pool, engine) for engine in pool.table],
        }

    @app.post("/engines", status_code=201)
    async def add_engine(body: AddEngine, controller: Controller = who) -> dict[str, Any]:
        pool = gateway.pools.own(controller.run_id)
        return answer(pool, await pool.add(body.url, body.id, body.version))

    @app.put("/engines/{engine_id}")
    async def tell_engine(engine_id: str, body: TellEngine, controller: Controller = who) -> dict[str, Any]:
        pool = gateway.pools.own(controller.run_id)
        return answer(pool, pool.tell(engine_id, version=body.version, routable=body.routable))

    @app.delete("/engines/{engine_id}", status_code=204)
    async def remove_engine(engine_id: str, controller: Controller = who) -> Response:
        await gateway.pools.own(controller.run_id).remove(engine_id)
        await gateway.pools.drop_if_empty(controller.run_id)
        return Response(status_code=204)


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
        return answer(Refusal(error.status_code, code, message), request.url.path)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        logger.error("%s %s failed inside the gateway", request.method, request.url.path, exc_info=error)
        return answer(Refusal(500, "internal_error", "the gateway failed on this request; its log says why"))


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


def _summary(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "session_id": trajectory.session_id,
        "stop_reason": trajectory.stop_reason,
        "reward": trajectory.reward,
        "calls": len(trajectory.calls),
        "rows": len(trajectory.rows),
        "trained_tokens": sum(sum(row.loss_mask) for row in trajectory.rows),
        "dropped": trajectory.dropped,
    }
