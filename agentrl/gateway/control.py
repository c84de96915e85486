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

from agentrl.gateway.dialects.errors import openai_error, retry_headers
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.refusal import Refusal, invalid
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


class TellEngine(Body):
    version: int | None = Field(default=None, ge=0)
    routable: bool | None = None


def add_routes(app: FastAPI, gateway: Gateway) -> None:
    async def admin(request: Request) -> None:
        gateway.auth.require_admin(request.headers)

    for_admin = APIRouter(dependencies=[Depends(admin)])
    _add_session_routes(for_admin, gateway)
    _add_engine_routes(for_admin, gateway)
    _add_reward_route(app, gateway)

    @for_admin.get("/metrics")
    async def metrics() -> Response:
        return Response(gateway.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    app.include_router(for_admin)
    _add_error_handlers(app)


def _add_session_routes(router: APIRouter, gateway: Gateway) -> None:
    @router.post("/sessions", status_code=201)
    async def open_session(body: OpenSession) -> dict[str, str]:
        session = await gateway.open(
            body.session_id,
            task=_converted("task", body.task, Task),
            metadata=body.metadata,
            pins=checked_pins(body.sampling or {}, body.mode),
            limits=_converted("limits", body.limits, Limits),
            mode=body.mode,
            reward_by=body.reward_by,
        )
        base_url = f"{gateway.base_url}/sessions/{session.id}/v1"
        return {"session_id": session.id, "base_url": base_url, "api_key": session.api_key}

    @router.post("/sessions/{session_id}/finish")
    async def finish(session_id: str, body: FinishSession | None = None) -> dict[str, Any]:
        trajectory = await gateway.finish(await gateway.session(session_id), body.stop_reason if body else None)
        return _summary(trajectory)

    @router.get("/sessions/{session_id}/trajectory")
    async def trajectory(session_id: str) -> Response:
        found = await gateway.trajectory(await gateway.session(session_id))
        return Response(msgspec.json.encode(found), media_type="application/json")

    @router.delete("/sessions/{session_id}", status_code=204)
    async def forget(session_id: str) -> Response:
        await gateway.forget(session_id)
        return Response(status_code=204)


def _add_reward_route(app: FastAPI, gateway: Gateway) -> None:
    async def rewarded(request: Request, session_id: str) -> Session:
        session = await gateway.auth.session_of(request.headers, session_id)
        if session.reward_by == "admin":
            gateway.auth.require_admin(request.headers)
        return session

    its_session = Depends(rewarded)

    @app.post("/sessions/{session_id}/reward")
    async def set_reward(body: SetReward, session: Session = its_session) -> dict[str, Any]:
        await gateway.reward(session, body.reward, body.components, body.call_id)
        return {"session_id": session.id, "reward": body.reward, "call_id": body.call_id}


def _add_engine_routes(router: APIRouter, gateway: Gateway) -> None:
    @router.get("/engines")
    async def engines() -> dict[str, Any]:
        table = [msgspec.to_builtins(gateway.table.status(engine)) for engine in gateway.table]
        return {"current_version": gateway.table.current_version, "engines": table}

    @router.post("/engines", status_code=201)
    async def add_engine(body: AddEngine) -> dict[str, Any]:
        engine = await gateway.pool.add(body.url, body.id, body.version)
        return dict(msgspec.to_builtins(gateway.table.status(engine)))

    @router.put("/engines/{engine_id}")
    async def tell_engine(engine_id: str, body: TellEngine) -> dict[str, Any]:
        engine = gateway.pool.tell(engine_id, version=body.version, routable=body.routable)
        return dict(msgspec.to_builtins(gateway.table.status(engine)))

    @router.delete("/engines/{engine_id}", status_code=204)
    async def remove_engine(engine_id: str) -> Response:
        await gateway.pool.remove(engine_id)
        return Response(status_code=204)


def _add_error_handlers(app: FastAPI) -> None:
    def answer(refusal: Refusal) -> Response:
        headers = retry_headers(refusal)
        return Response(openai_error(refusal), refusal.status, headers, media_type="application/json")

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
        return answer(Refusal(error.status_code, "not_found" if error.status_code == 404 else "http_error", message))

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
