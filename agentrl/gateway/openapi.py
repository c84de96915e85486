"""The gateway's OpenAPI document: FastAPI's of the control API, and that of each dialect's request from its types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.messages_request import CountRequest

REF = "#/components/schemas/{name}"

ERRORS = {
    "400": "A field is wrong or not supported; the error names it",
    "401": "No key, or an unknown one",
    "403": "A key that opens something else",
    "404": "There is no such session or response",
    "409": "The session is finished, or the idempotency key came with another body",
    "413": "The body is too large",
    "429": "Too many calls wait; Retry-After says when to come again",
    "499": "The client closed the connection",
    "502": "An engine broke its contract",
    "503": "No engine, or no store, for now; Retry-After says when to come again",
    "504": "No answer in time",
}


def document(app: FastAPI, dialects: Sequence[Dialect[Any]], prefixes: Sequence[str]) -> dict[str, Any]:
    """Each dialect is served below each of `prefixes`."""
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    types = [*(dialect.request_type for dialect in dialects), CountRequest]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    found["components"].setdefault("schemas", {}).update(components)
    found["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "The admin's, a run's or a session's key"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    found["security"] = [{"key": []}, {"x-api-key": []}]
    for prefix in prefixes:
        for dialect, schema in zip(dialects, schemas, strict=False):
            summary = f"One model call in the {dialect.name} dialect, streamed or not"
            found["paths"][prefix + dialect.path] = {"post": _operation(prefix, dialect.name, summary, schema)}
        counting = _operation(prefix, "count_tokens", "How long the prompt of a message would be", schemas[-1])
        found["paths"][f"{prefix}/v1/messages/count_tokens"] = {"post": counting}
        found["paths"][f"{prefix}/v1/models"] = {"get": _described("models", prefix, "The one model that is served")}
    for path in found["paths"].values():
        for operation in path.values():
            for status, meaning in ERRORS.items():
                operation["responses"].setdefault(status, {"description": meaning})
            operation["responses"].pop("422", None)  # the dialects' own error objects come with 400
    return found


def _operation(prefix: str, name: str, summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    operation = _described(name, prefix, summary)
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    operation["responses"]["200"]["content"] = {"application/json": {}, "text/event-stream": {}}
    return operation


def _described(name: str, prefix: str, summary: str) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{name}_of_session" if prefix else name,
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": {"application/json": {}}}},
    }
    if prefix:
        of_session = {"name": "session_id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [of_session]
    return operation
