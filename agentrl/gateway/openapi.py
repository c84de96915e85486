"""The gateway's OpenAPI document: every route with its key, its body, its answer and the errors that can come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from msgspec import Struct

from agentrl.gateway.control_bodies import Engines, Finished, Health, Rewarded, RunOpened, SessionOpened
from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.messages_request import CountRequest
from agentrl.types import EngineStatus, Limits, Sampling, Task, Trajectory

ERRORS = {
    400: "A field is wrong or not supported, or a limit of the session is used up; the error names it",
    401: "No key, or an unknown one",
    403: "A key that opens something else",
    404: "It does not exist, or not for this key",
    409: "It exists already, is finished, or is of another version; or an idempotency key came with another body",
    413: "The body is too large",
    429: "Too many wait, or too many sessions are open",
    500: "The store refuses this for good, or the gateway failed; its log says why",
    502: "An engine refused the call or broke its contract",
    503: "No engine, or no store, for now",
    504: "No answer in time",
}

WITH_BODY = (400, 413)
STORED = (500, 503)
CALL = (*WITH_BODY, 409, 429, 500, 502, 503, 504)
RETRY_AFTER = {"Retry-After": {"description": "Seconds; absent where a retry is no use", "schema": {"type": "integer"}}}


class Described(NamedTuple):
    """`refusals` beside 401, and beside 404 where the path names something."""

    answer: Any  # its type; None for no body
    refusals: tuple[int, ...] = ()


CONTROL: dict[str, Described] = {
    "open_session": Described(SessionOpened, (*WITH_BODY, 403, 409, 429, *STORED)),
    "finish_session": Described(Finished, (*WITH_BODY, 403, *STORED)),
    "get_trajectory": Described(Trajectory, (403, *STORED)),
    "forget_session": Described(None, (403, *STORED)),
    "set_reward": Described(Rewarded, (*WITH_BODY, 403, 409, *STORED)),
    "list_engines": Described(Engines, (403,)),
    "add_engine": Described(EngineStatus, (*WITH_BODY, 403, 409)),
    "tell_engine": Described(EngineStatus, (*WITH_BODY, 403)),
    "remove_engine": Described(None, (403,)),
    "open_run": Described(RunOpened, (*WITH_BODY, 403)),
    "metrics": Described(str, (403,)),
    "health": Described(Health),
}
"""By the name of the route."""


class ErrorDetails(Struct):
    message: str
    type: str
    param: str | None  # the field
    code: str


class Error(Struct):
    """OpenAI's error object, of the control API and of every dialect but messages."""

    error: ErrorDetails


class MessagesErrorDetails(Struct):
    type: str
    message: str
    details: dict[str, str]  # error_code, param


class MessagesError(Struct):
    """Anthropic's error object."""

    type: Literal["error"]
    error: MessagesErrorDetails


class CountAnswer(Struct):
    input_tokens: int


class Model(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class Models(Struct):
    object: Literal["list"]
    data: list[Model]


class Schemas:
    """The schemas of types, each put among the document's components once, its names below `group`."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any, group: str = "") -> dict[str, Any]:
        """A reference to the schema of `kind`; names of types are unique within a group."""
        prefix = f"{group}." if group else ""
        [schema], components = msgspec.json.schema_components(
            [kind], ref_template=f"#/components/schemas/{prefix}{{name}}"
        )
        self.components.update({prefix + name: found for name, found in components.items()})
        return schema


def document(app: FastAPI, dialects: Sequence[Dialect[Any]], prefixes: Sequence[str]) -> dict[str, Any]:
    """Each dialect is served below each of `prefixes`. Raises KeyError for a control route that is not described."""
    schemas = Schemas()
    found = get_openapi(title=app.title, version=app.version, routes=app.routes)
    for path, item in found["paths"].items():
        for operation in item.values():
            _describe_control(path, operation, schemas)
    for prefix in prefixes:
        found["paths"].update(_dialect_paths(dialects, prefix, schemas))
    document_itself = _operation("openapi", "", "This document", {"type": "object"})
    found["paths"]["/openapi.json"] = {"get": document_itself | _errors("/openapi.json", (), schemas, document_itself)}
    components = found["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        components.pop(name, None)  # errors here are of another form
    for name, kind in (("task", Task), ("sampling", Sampling), ("limits", Limits)):
        components["OpenSession"]["properties"][name] = {"anyOf": [schemas.of(kind), {"type": "null"}]}
    components.update(schemas.components)
    found["components"]["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "The admin's, a run's or a session's key"},
        "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    found["security"] = [{"key": []}, {"x-api-key": []}]
    return found


def _describe_control(path: str, operation: dict[str, Any], schemas: Schemas) -> None:
    described = CONTROL[operation["operationId"]]
    [(status, success)] = [(s, r) for s, r in operation["responses"].items() if s.startswith("2")]
    success = {"description": "Done"}
    if described.answer is str:
        success["content"] = {"text/plain": {"schema": {"type": "string"}}}
    elif described.answer is not None:
        success["content"] = {"application/json": {"schema": schemas.of(described.answer)}}
    operation["responses"] = {status: success}
    if path == "/health":
        operation["security"] = []
    else:
        operation.update(_errors(path, described.refusals, schemas, operation))


def _dialect_paths(dialects: Sequence[Dialect[Any]], prefix: str, schemas: Schemas) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for dialect in dialects:
        summary = f"One model call in the {dialect.name} dialect, streamed or not"
        operation = _operation(dialect.name, prefix, summary, {"type": "object"})
        operation["responses"]["200"]["content"]["text/event-stream"] = {}
        _add_body(operation, schemas.of(dialect.request_type, dialect.name))
        path = prefix + dialect.path
        paths[path] = {"post": operation | _errors(path, (*CALL, 403, 404), schemas, operation)}
    counting = _operation("count_tokens", prefix, "How long the prompt of a message would be", schemas.of(CountAnswer))
    _add_body(counting, schemas.of(CountRequest, "messages"))
    path = f"{prefix}/v1/messages/count_tokens"
    paths[path] = {"post": counting | _errors(path, (*WITH_BODY, 403, 404, *STORED), schemas, counting)}
    models = _operation("models", prefix, "The one model that is served", schemas.of(Models))
    path = f"{prefix}/v1/models"
    paths[path] = {"get": models | _errors(path, (403, *STORED) if prefix else (), schemas, models)}
    one = _operation("model", prefix, "The same, by its id", schemas.of(Model))
    one.setdefault("parameters", []).append(
        {"name": "model", "schema": {"type": "string"}, "in": "path", "required": True}
    )
    path = f"{prefix}/v1/models/{{model}}"
    paths[path] = {"get": one | _errors(path, (403, *STORED) if prefix else (), schemas, one)}
    return paths


def _errors(path: str, refusals: Sequence[int], schemas: Schemas, operation: dict[str, Any]) -> dict[str, Any]:
    """The operation's responses with its errors among them."""
    named = (404,) if "{" in path else ()
    schema = schemas.of(MessagesError if "/v1/messages" in path else Error)
    responses = dict(operation["responses"])
    for status in sorted({401, *named, *refusals}):
        response = {"description": ERRORS[status], "content": {"application/json": {"schema": schema}}}
        responses[str(status)] = response | ({"headers": RETRY_AFTER} if status in (429, 503) else {})
    return {"responses": responses}


def _add_body(operation: dict[str, Any], schema: dict[str, Any]) -> None:
    operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}


def _operation(name: str, prefix: str, summary: str, answer: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": f"{name}_of_session" if prefix else name,
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": {"application/json": {"schema": answer}}}},
    }
    named = {"name": "session_id", "schema": {"type": "string"}}
    if prefix:
        operation["parameters"] = [named | {"in": "path", "required": True}]
    elif name not in ("models", "model", "openapi"):
        header = named | {"name": "X-Session-ID", "in": "header", "required": False}
        header["description"] = "The session, where the key is the admin's or a run's"
        operation["parameters"] = [header]
    return operation
