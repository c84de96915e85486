"""The gateway's OpenAPI document: complete, valid, and what the gateway really answers."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from fastapi.routing import APIRoute
from gateway_builders import END, always, serving
from starlette.routing import Route

from agentrl.gateway.server import GatewayServer


async def document() -> dict[str, Any]:
    async with serving(always([END])) as served:
        return dict((await served.http.get("/openapi.json")).json())


def operations(found: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, method.upper(), operation) for path, item in found["paths"].items() for method, operation in item.items()
    ]


def served_routes(server: GatewayServer) -> set[tuple[str, str]]:
    """As Starlette will route them, whatever the document says."""
    found = set()
    waiting = list(server._app._app._app.routes)  # below the body limit and the short way
    while waiting:
        route = waiting.pop()
        if isinstance(route, (Route, APIRoute)):
            path = route.path.replace(":path}", "}")  # OpenAPI has no such thing
            found |= {(path, method) for method in route.methods or () if method != "HEAD"}
        else:
            waiting += getattr(getattr(route, "original_router", route), "routes", [])
    return found


async def test_every_route_is_in_the_document_and_nothing_else_is() -> None:
    async with serving(always([END])) as served:
        found = (await served.http.get("/openapi.json")).json()
        assert {(path, method) for path, method, _ in operations(found)} == served_routes(served.server)


async def test_whoever_has_a_key_is_given_the_document() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        for headers, status in (
            ({"x-api-key": session.api_key, "Authorization": ""}, 200),
            ({"Authorization": ""}, 401),
        ):
            assert (await served.http.get("/openapi.json", headers=headers)).status_code == status


async def test_every_reference_leads_to_a_schema_and_every_schema_is_valid() -> None:
    found = await document()
    schemas = found["components"]["schemas"]

    def references(value: Any) -> set[str]:
        if isinstance(value, dict):
            inner = {name for item in value.values() for name in references(item)}
            return inner | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())
        return {name for item in value for name in references(item)} if isinstance(value, list) else set()

    assert references(found) == {f"#/components/schemas/{name}" for name in schemas}
    for schema in schemas.values():
        jsonschema_rs.meta.validate(schema)


async def test_every_operation_but_health_needs_a_key_and_says_so() -> None:
    found = await document()
    assert found["security"] == [{"key": []}, {"x-api-key": []}]
    for path, _, operation in operations(found):
        if path == "/health":
            assert operation["security"] == []
        else:
            assert "security" not in operation
            assert "401" in operation["responses"]


async def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for _, _, operation in operations(await document())]
    assert len(set(names)) == len(names)


async def test_path_parameters_are_those_of_the_path() -> None:
    for path, _, operation in operations(await document()):
        declared = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/chat/completions", "Error"),
        ("/v1/messages", "MessagesError"),
        ("/sessions/{session_id}/v1/messages/count_tokens", "MessagesError"),
        ("/sessions", "Error"),
    ],
)
async def test_errors_are_described_as_the_dialect_writes_them(path: str, error: str) -> None:
    found = await document()
    described = found["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]
    assert described == {"$ref": f"#/components/schemas/{error}"}
    async with serving(always([END])) as served:
        session = await served.open()
        answer = await served.http.post(
            path.format(session_id=session.id), json={"colour": 1}, headers={"X-Session-ID": session.id}
        )
    assert answer.status_code == 400
    schema = {"$ref": described["$ref"], "components": found["components"]}
    jsonschema_rs.validate(schema, answer.json())
