"""schemathesis over the gateway's own OpenAPI document: whatever is sent, the answer is one that the document lists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from gateway_builders import END, ids
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.errors import InvalidSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from test_gateway_security import DIALECTS as REQUESTS
from threaded_gateway import threaded

from agentrl.engine.client import HttpEngineClient
from agentrl.gateway.app import PREFIXES
from agentrl.gateway.dialects import ALL
from agentrl.store.sql import SqlStore

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
EXAMPLES = 20
GOOD = {prefix + path: body for prefix in PREFIXES for path, body in REQUESTS.items()}
DIALECTS = [(prefix + dialect.path, "POST") for prefix in PREFIXES for dialect in ALL]
SESSION = [
    *[(f"{prefix}/v1/messages/count_tokens", "POST") for prefix in PREFIXES],
    *[(f"{prefix}/v1/models{one}", "GET") for prefix in PREFIXES for one in ("", "/{model}")],
    ("/sessions/{session_id}/reward", "POST"),
]
CONTROL = [
    ("/sessions", "POST"),
    ("/sessions/{session_id}/finish", "POST"),
    ("/sessions/{session_id}/trajectory", "GET"),
    ("/sessions/{session_id}", "DELETE"),
    ("/engines", "GET"),
    ("/engines", "POST"),
    ("/engines/{engine_id}", "PUT"),
    ("/engines/{engine_id}", "DELETE"),
    ("/runs", "POST"),
    ("/metrics", "GET"),
    ("/health", "GET"),
    ("/openapi.json", "GET"),
]


@dataclass
class Target:
    url: str
    schema: Any
    admin_key: str
    http: requests.Session

    def control(self, method: str, path: str, **body: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        return self.http.request(method, self.url + path, json=body, headers=headers, timeout=30)

    def names(self, path: str) -> tuple[dict[str, str], str]:
        """Path parameters that name something, and the key of the session among them."""
        if "{engine_id}" in path:
            self.control("POST", "/engines", url="http://127.0.0.1:9/spare", id="spare")
            return {"engine_id": "spare"}, ""
        opened = self.control(
            "POST", "/sessions", mode="eval", across_swaps=True
        ).json()  # takes more fields than train
        return {"session_id": opened["session_id"], "model": "policy"}, opened["api_key"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """Engines that are added lead to the scripted one, whatever their URL."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    sink = SqlStore(f"sqlite:///{folder / 'trajectories.db'}")
    scripted: list[str] = []

    def client(url: str) -> HttpEngineClient:
        scripted.append(url)
        return HttpEngineClient(scripted[0])

    turn = [*ids('<think>hm</think>ok <tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call>'), END]
    options = {"sink": sink, "engine_factory": client, "health_every_s": 60, "engine_wait_s": 5}
    with threaded(lambda prompt_ids, sampling, version: turn, **options) as served, requests.Session() as http:
        http.trust_env = False
        found = http.get(
            f"{served.server.url}/openapi.json", headers={"x-api-key": served.server.admin_key}, timeout=30
        )
        schema = schemathesis.openapi.from_dict(found.json())
        yield Target(served.server.url, schema, served.server.admin_key, http)
    sink.close()


@st.composite
def possible(draw: st.DrawFn, cases: st.SearchStrategy[Any]) -> Any:
    """Without the mutations of a schema that schemathesis then cannot follow itself."""
    try:
        return draw(cases)
    except InvalidSchema:
        return reject()


def fuzz(target: Target, path: str, method: str, *, by: str) -> None:
    operation = target.schema[path][method]
    cases = st.one_of(operation.as_strategy(), operation.as_strategy(GenerationMode.NEGATIVE))
    if method != "POST" and "{" not in path:
        cases = operation.as_strategy()  # there is nothing to get wrong

    @settings(
        max_examples=EXAMPLES if "{" in path or method == "POST" else 1,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=possible(cases), is_named=st.sampled_from([True, True, False]), kept=st.integers(0, 3))
    def run(case: Any, is_named: bool, kept: int) -> None:
        existing, session_key = target.names(path)
        if kept and path in GOOD and isinstance(case.body, dict):  # so that some get past the first wrong field
            fields = list(case.body)[-kept:]
            case.body = {**GOOD[path], **{field: case.body[field] for field in fields}}
        if is_named and "{" in path:
            case.path_parameters = existing
        key = target.admin_key if by == "admin" else session_key
        headers = {"Authorization": f"Bearer {key}"}
        if by == "admin" and "session_id" in existing:
            headers["X-Session-ID"] = existing["session_id"]
        response = case.call(base_url=target.url, session=target.http, headers=headers, timeout=30)
        case.validate_response(response, checks=CHECKS)

    run()


@pytest.mark.parametrize(("path", "method"), [*DIALECTS, *SESSION, *CONTROL])
def test_whatever_an_admin_sends_is_answered_as_described(target: Target, path: str, method: str) -> None:
    fuzz(target, path, method, by="admin")


@pytest.mark.parametrize(("path", "method"), [*DIALECTS, *SESSION])
def test_whatever_an_agent_sends_is_answered_as_described(target: Target, path: str, method: str) -> None:
    fuzz(target, path, method, by="session")


def test_every_operation_of_the_document_is_tried(target: Target) -> None:
    described = {(path, m.upper()) for path, item in target.schema.raw_schema["paths"].items() for m in item}
    assert described == {*DIALECTS, *SESSION, *CONTROL}
