"""A reward service over HTTP: design §7's `/score`, with health, metrics and documentation."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from agentrl.reward.protocol import Item, Score
from agentrl.reward.scoring import AmbiguousItems, Busy, Scoring, Stopping
from agentrl.reward.service import RewardService

MAX_BODY = 64 * 2**20  # bytes
RETRY_AFTER_S = 1


class ScoreRequest(msgspec.Struct):
    items: list[Item]


class ScoreAnswer(msgspec.Struct):
    results: list[Score]


_DECODER = msgspec.json.Decoder(ScoreRequest)


def build_app(
    name: str,
    service: RewardService,
    *,
    description: str = "",
    key: str | None = None,
    max_waiting: int = 10_000,
    max_body: int = MAX_BODY,
) -> FastAPI:
    """`key`, when given, has to come as a bearer token with every request but `/health`.

    `app.state.stop(grace_s)` refuses what is new and ends what is under way: a server waits for that before it closes.
    """
    scoring = Scoring(service, max_waiting=max_waiting)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await scoring.close()

    app = FastAPI(title=f"agentrl reward service {name}", description=description, lifespan=lifespan)
    app.state.stop = scoring.stop

    @app.post("/score", openapi_extra=_documented(), summary="Score episodes")
    async def score(request: Request) -> Response:
        """One result an item, in any order: a reward, or null with an error that says why there is none.

        An id that is asked for again with the same content gets the same score.
        """
        if (refused := _unknown_key(request, key)) is not None:
            return refused
        body = await _body(request, max_body)
        if body is None:
            return _error(413, "body_too_large", f"the body has more than {max_body} bytes; send fewer items at once")
        try:
            asked = _DECODER.decode(body)
            results = await scoring.score(asked.items)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return _error(400, "invalid_request", f"the body is not a score request: {error}")
        except AmbiguousItems as error:
            return _error(400, "invalid_request", str(error))
        except Busy as error:
            return _error(429, "busy", str(error), {"Retry-After": str(RETRY_AFTER_S)})
        except Stopping as error:
            return _error(503, "stopping", str(error), {"Retry-After": str(RETRY_AFTER_S)})
        return Response(msgspec.json.encode(ScoreAnswer(results)), media_type="application/json")

    @app.get("/health", summary="Whether the service is up")
    async def health() -> dict[str, str]:
        return {"status": "ok", "service": name}

    @app.get("/metrics", summary="Prometheus metrics")
    async def metrics(request: Request) -> Response:
        refused = _unknown_key(request, key)
        return refused or Response(generate_latest(scoring.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _body(request: Request, limit: int) -> bytes | None:
    """None when it is longer than `limit` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


def _unknown_key(request: Request, key: str | None) -> Response | None:
    if key is None:
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), key.encode()):
        return None
    return _error(401, "invalid_api_key", "this service wants its key as 'Authorization: Bearer KEY'")


def _error(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> Response:
    body = msgspec.json.encode({"error": {"message": message, "code": code}})
    return Response(body, status, headers, media_type="application/json")


def _documented() -> dict[str, Any]:
    """OpenAPI of `/score`: the bodies are read by msgspec, which FastAPI knows nothing of."""
    schemas, parts = msgspec.json.schema_components(
        [ScoreRequest, ScoreAnswer], ref_template="#/components/schemas/{name}"
    )
    inlined = [_inlined(schema, parts) for schema in schemas]
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": inlined[0]}}},
        "responses": {"200": {"description": "Scores", "content": {"application/json": {"schema": inlined[1]}}}},
    }


def _inlined(schema: Any, parts: dict[str, Any]) -> Any:
    """FastAPI keeps no components that it did not make, so references are replaced by what they name."""
    if isinstance(schema, list):
        return [_inlined(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inlined(parts[schema["$ref"].rpartition("/")[2]], parts)
    return {key: _inlined(value, parts) for key, value in schema.items()}
