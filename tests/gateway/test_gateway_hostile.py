"""Hostile requests: whatever comes in, the answer is a clean refusal in the dialect's own words (invariant 14)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from gateway_builders import END, MemorySink, always, serving
from test_gateway_security import DIALECTS, bearer, refused

from agentrl.store.sql import SqlStore

dialects = pytest.mark.parametrize("path", DIALECTS)


HOSTILE_IDS = [
    "..",
    "../admin",
    "%2e%2e",
    "%2e%2e%2fmetrics",
    "a%2f..%2fb",
    "%00",
    "a%00b",
    "%ff%fe",
    "%ed%a0%80",
    "x" * 5000,
    "'; --",
    "$.x",
]


@pytest.mark.parametrize("name", HOSTILE_IDS)
async def test_a_hostile_session_id_names_no_session(name: str, tmp_path: Path) -> None:
    sink = SqlStore(f"sqlite:///{tmp_path / 't.db'}")
    async with serving(always([END]), sink=sink) as served:
        host = urlsplit(served.server.url)
        for method, path in (("GET", "trajectory"), ("POST", "v1/messages"), ("DELETE", "")):
            reader, writer = await asyncio.open_connection(host.hostname, host.port)
            target = f"/sessions/{name}/{path}".rstrip("/").replace(" ", "%20")
            head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {served.server.admin_key}\r\n"
            writer.write((head + "content-length: 2\r\nconnection: close\r\n\r\n{}").encode())
            status = int((await reader.readline()).split()[1])
            writer.close()
            assert status in (404, 405), (method, target, status)
    sink.close()


@pytest.mark.parametrize("name", ["../x", "x" * 5000, "\xff\xfe", "a b", "'"])
async def test_a_hostile_session_id_in_the_header_names_no_session(name: str) -> None:
    async with serving(always([END]), sink=MemorySink()) as served:
        for path, body in DIALECTS.items():
            headers = {"X-Session-ID": name.encode("latin-1")}
            assert refused(await served.http.post(path, json=body, headers=headers), path) == 404  # type: ignore[arg-type]


DEEP = b"[" * 100_000 + b"]" * 100_000
NOT_JSON = {
    "empty": b"",
    "nothing": b"null",
    "a list": b"[]",
    "a string": b'"x"',
    "cut off": b'{"messages": [',
    "nested deep": DEEP,
    "nested deep in a field": b'{"messages": ' + DEEP + b', "input": ' + DEEP + b', "token_ids": ' + DEEP + b"}",
    "half a character": b'{"messages": "\\ud800", "input": "\\ud800", "prompt": "\\ud800"}',
    "no UTF-8": b'{"messages": "\xff\xfe"}',
    "NaN": b'{"temperature": NaN}',
    "infinity": b'{"temperature": 1e999}',
    "a huge number": b'{"max_tokens": ' + b"9" * 5000 + b"}",
    "a form": b"messages=q&model=m",
    "gzip": b"\x1f\x8b\x08\x00",
    "two documents": b"{}{}",
}


@dialects
@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON)
async def test_a_hostile_body_is_a_400_in_the_dialects_own_words(path: str, body: bytes) -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        response = await served.http.post(path, content=body, headers=bearer(session.api_key))
        assert refused(response, path) == 400


@dialects
@pytest.mark.parametrize("number", [10**18, 10**19, 2**63, -(10**30)])
async def test_a_huge_number_in_any_field_is_answered_or_refused(path: str, number: int) -> None:
    async with serving(always([END])) as served:
        session = await served.open(mode="eval")
        fields = (
            "max_tokens",
            "max_completion_tokens",
            "seed",
            "n",
            "top_k",
            "stop_token_ids",
            "logprobs",
            "temperature",
        )
        for field in fields:
            value = [number] if field == "stop_token_ids" else number
            body = dict(DIALECTS[path])
            if path == "/inference/v1/generate":
                body["sampling_params"] = {field: value}
            else:
                body[field] = value
            response = await served.http.post(path, json=body, headers=bearer(session.api_key))
            assert response.status_code in (200, 400), (field, response.text)
            if response.status_code == 400:
                refused(response, path)


@pytest.mark.parametrize("path", [path for path in DIALECTS if not path.endswith("count_tokens")])
@pytest.mark.parametrize("last", [False, True])
async def test_of_a_field_that_comes_twice_the_last_counts(path: str, last: bool) -> None:
    """As in every JSON parser that SDKs are tried with: two readers of one body must not read two things."""
    async with serving(always([END])) as served:
        session = await served.open()
        first, second = json.dumps(not last), json.dumps(last)
        body = f'{{"stream": {first}, {json.dumps(DIALECTS[path])[1:-1]}, "stream": {second}}}'
        response = await served.http.post(path, content=body, headers=bearer(session.api_key))
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream" if last else "application/json")


@dialects
@pytest.mark.parametrize(
    "kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", ""]
)
async def test_the_body_counts_and_not_what_the_client_calls_it(path: str, kind: str) -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        headers = bearer(session.api_key) | {"content-type": kind}
        for body, status in ((json.dumps(DIALECTS[path]), 200), ("--x\r\n", 400)):
            assert (await served.http.post(path, content=body, headers=headers)).status_code == status


@dialects
@pytest.mark.parametrize("announced", [True, False])
async def test_an_oversized_body_is_a_413_in_the_dialects_own_words(path: str, announced: bool) -> None:
    async def chunks() -> Any:
        for _ in range(8):
            yield b" " * 512

    async with serving(always([END]), max_body_bytes=2048) as served:
        session = await served.open()
        content = b" " * 4096 if announced else chunks()
        response = await served.http.post(path, content=content, headers=bearer(session.api_key))
        assert refused(response, path) == 413


CONTROL = [
    ("POST", "/sessions", b'{"metadata": ' + DEEP + b"}"),
    ("POST", "/sessions", b'{"metadata": {"x": ' + b"9" * 40 + b"}}"),
    ("POST", "/sessions", b'{"task": {"id": "t", "seed": ' + b"9" * 40 + b"}}"),
    ("POST", "/sessions", b'{"sampling": {"stop": ["\\ud800"]}}'),
    ("POST", "/sessions", b'{"limits": {"max_calls": ' + b"9" * 40 + b"}}"),
    ("POST", "/sessions", b"\xff"),
    ("POST", "/sessions", b'{"session_id": "\\ud800"}'),
    ("POST", "/engines", b'{"url": "http://\\ud800"}'),
    ("POST", "/engines", b'{"url": "http://["}'),
    ("POST", "/engines", b'{"url": "http://x:99999"}'),
    ("POST", "/engines", b'{"url": "http://127.0.0.1:9", "id": "a/b"}'),
    ("POST", "/engines", b'{"url": "http://127.0.0.1:9", "version": ' + b"9" * 40 + b"}"),
    ("PUT", "/engines/engine-0", b'{"version": ' + b"9" * 40 + b"}"),
    ("PUT", "/engines/engine-0", b'{"version": -1}'),
    ("POST", "/runs", b'{"run_id": "\\ud800"}'),
    ("POST", "/runs", b'{"run_id": ["a"]}'),
]


@pytest.mark.parametrize(("method", "path", "body"), CONTROL)
async def test_a_hostile_control_request_is_a_400_and_changes_nothing(method: str, path: str, body: bytes) -> None:
    async with serving(always([END]), sink=MemorySink()) as served:
        before = (await served.http.get("/engines")).json()
        response = await served.http.request(method, path, content=body, headers={"content-type": "application/json"})
        assert refused(response, path) == 400, response.text
        assert (await served.http.get("/engines")).json() == before
        assert (await served.http.get("/metrics")).status_code == 200
        assert not list(served.server.gateway.sessions)
