"""Invariant 14: a key opens what is its own and is written down nowhere; hostile requests get clean refusals."""

from __future__ import annotations

import logging
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_builders import END, MemorySink, Served, always, ids, serving, user

from agentrl.engine.scripted import Fault
from agentrl.gateway import keys, sessions
from agentrl.gateway.keys import key_digest
from agentrl.gateway.sessions import SessionRegistry
from agentrl.store.sql import SqlStore

ADMIN = "sk-agentrl-admin-of-the-test"
DIALECTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [user("q")]},
    "/v1/completions": {"model": "m", "prompt": "q"},
    "/v1/responses": {"model": "m", "input": "q"},
    "/v1/messages": {"model": "m", "max_tokens": 4, "messages": [user("q")]},
    "/v1/messages/count_tokens": {"model": "m", "messages": [user("q")]},
    "/inference/v1/generate": {"token_ids": [65]},
}
dialects = pytest.mark.parametrize("path", DIALECTS)


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def refused(response: httpx.Response, path: str) -> int:
    """The status of a refusal, which has to be in the form of the dialect at `path`."""
    body = response.json()
    if "/v1/messages" in path:
        assert (body["type"], set(body["error"])) == ("error", {"type", "message", "details"})
    else:
        assert set(body["error"]) == {"message", "type", "param", "code"}
    return response.status_code


# What a session's key opens


async def test_a_sessions_key_does_nothing_to_another_session() -> None:
    async with serving(always([*ids("ok"), END])) as served:
        mine, other = await served.open(), await served.open()
        await other.chat([user("q")])
        before = await served.trajectory(other)
        base, headers = f"/sessions/{other.id}", bearer(mine.api_key)
        for path, body in DIALECTS.items():
            for url, named in ((base + path, {}), (path, {"X-Session-ID": other.id})):
                assert (await served.http.post(url, json=body, headers=headers | named)).status_code == 403, url
        for method, path in [
            ("GET", "/trajectory"),
            ("POST", "/reward"),
            ("POST", "/finish"),
            ("DELETE", ""),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/policy"),
        ]:
            body = {"reward": 1.0} if path == "/reward" else {}
            response = await served.http.request(method, base + path, json=body, headers=headers)
            assert response.status_code == 403, path
        assert await served.trajectory(other) == before


async def test_a_sessions_key_gives_it_neither_its_own_trajectory_nor_its_end_nor_anything_of_the_admin() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        for method, path, body in [
            ("GET", f"/sessions/{session.id}/trajectory", None),
            ("POST", f"/sessions/{session.id}/finish", {}),
            ("DELETE", f"/sessions/{session.id}", None),
            ("POST", "/sessions", {}),
            ("POST", "/runs", {"run_id": "r"}),
            ("GET", "/engines", None),
            ("POST", "/engines", {"url": "http://127.0.0.1:9"}),
            ("PUT", "/engines/engine-0", {"routable": False}),
            ("DELETE", "/engines/engine-0", None),
            ("GET", "/metrics", None),
        ]:
            response = await served.http.request(method, path, json=body, headers=bearer(session.api_key))
            assert (response.status_code, response.json()["error"]["code"]) == (403, "admin_only"), path
        assert (await session.post(messages=[user("q")])).status_code == 200


async def test_a_sessions_key_does_not_tell_whether_another_session_exists() -> None:
    async with serving(always([END])) as served:
        mine, other = await served.open(), await served.open()
        answers = [
            await served.http.post(f"/sessions/{name}/v1/responses", json={}, headers=bearer(mine.api_key))
            for name in (other.id, "nobody")
        ]
        assert answers[0].content == answers[1].content


async def test_a_body_is_not_looked_at_before_the_key() -> None:
    """Not even whether it is JSON."""
    async with serving(always([END])) as served:
        for path in ["/sessions", "/engines", "/runs", "/sessions/x/finish", "/sessions/x/reward", *DIALECTS]:
            response = await served.http.post(path, content=b"{", headers={"Authorization": "Bearer wrong"})
            assert refused(response, path) == 401, path


# Where keys are written down


class Wire:
    """All that a gateway answered."""

    def __init__(self, served: Served) -> None:
        self._served, self.seen = served, b""

    async def send(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> httpx.Response:
        response = await self._served.http.request(method, path, json=body, headers=headers)
        self.seen += response.content + repr(response.headers).encode()
        return response


async def whole_episode(served: Served) -> tuple[list[str], bytes]:
    """Calls in every dialect, errors of every kind; returns the secrets, and all that was answered afterwards."""
    admin = bearer(served.server.admin_key)
    run_key = (await served.http.post("/runs", json={"run_id": "r"})).json()["run_key"]
    session = await served.open()
    of_run = (await served.http.post("/sessions", json={}, headers=bearer(run_key))).json()
    wire, base = Wire(served), f"/sessions/{session.id}"
    for key in (session.api_key, served.server.admin_key, run_key, "sk-agentrl-wrong-key"):
        for path, body in DIALECTS.items():
            for sent in (body, {**body, "stream": True}, {"colour": 1}):
                await wire.send("POST", base + path, bearer(key), sent)
                await wire.send("POST", path, {"x-api-key": key, "Authorization": ""}, sent)
        for path in ("/engines", "/metrics", "/nowhere", "/openapi.json", f"{base}/trajectory"):
            await wire.send("GET", path, bearer(key))
    served.engine.fail_next(*[Fault(kind="die")] * 3)
    await wire.send("POST", f"{base}/v1/chat/completions", bearer(session.api_key), DIALECTS["/v1/chat/completions"])
    served.engine.fail_next(Fault(kind="error"))
    await wire.send("POST", f"{base}/v1/chat/completions", bearer(session.api_key), DIALECTS["/v1/chat/completions"])
    await wire.send("POST", f"{base}/reward", bearer(session.api_key), {"reward": 1.0})
    await wire.send("POST", f"{base}/finish", admin, {})
    for path in ("/metrics", f"{base}/trajectory", "/engines"):
        assert (await wire.send("GET", path, admin)).status_code == 200
    secrets = [session.api_key, of_run["api_key"], served.server.admin_key, run_key, "sk-agentrl-wrong-key"]
    return secrets, wire.seen


def forms(secret: str) -> list[bytes]:
    """A key, and its digest as it may be written."""
    digest = key_digest(secret)
    return [secret.encode(), digest, digest.hex().encode(), b64encode(digest), repr(digest).encode()]


async def test_no_key_and_no_digest_of_one_is_in_a_log_or_in_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "aiohttp", "aiohttp.client", "agentrl", "asyncio"):
        caplog.set_level(logging.DEBUG, name)
    async with serving(always([*ids("ok"), END]), sink=MemorySink()) as served:
        secrets, answered = await whole_episode(served)
    logged = caplog.text.encode()
    assert b"failed a call" in logged
    assert b"agentrl_gateway_requests_total" in answered
    for secret in secrets:
        for form in forms(secret):
            assert form not in logged
            assert form not in answered


async def test_no_key_is_in_the_stores_file_and_a_digest_only_while_its_session_may_come_back(tmp_path: Path) -> None:
    """By the digest, an agent's key still opens its session after the gateway was killed. It gives no key away."""
    sink = SqlStore(f"sqlite:///{tmp_path / 'trajectories.db'}")
    async with serving(always([*ids("ok"), END]), sink=sink) as served:
        (finished, still_open, *others), _ = await whole_episode(served)
        written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        journal = b"".join(entry for _, entries in sink.journal("gateway") for entry in entries)
    sink.close()
    for secret in (finished, still_open, *others):
        assert secret.encode() not in written
    for secret in others:
        assert not [form for form in forms(secret) if form in written]
    assert not [form for form in forms(finished) if form in journal]
    assert b64encode(key_digest(still_open)) in journal  # were it not, this test would have looked in the wrong place


async def test_keys_are_looked_up_and_compared_by_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that how long it takes says nothing about how much of a key was right."""
    compared: list[tuple[Any, Any]] = []
    same = keys.hmac.compare_digest

    def watched(given: Any, expected: Any) -> bool:
        compared.append((given, expected))
        return bool(same(given, expected))

    monkeypatch.setattr(keys.hmac, "compare_digest", watched)
    assert keys.same_key("sk-a", "sk-b") is False
    assert keys.run_of(keys.run_key("admin", "r"), "admin") == "r"
    registry = SessionRegistry(max_sessions=2, idle_s=60, saved_idle_s=5)
    session, key = registry.create(None, now=0.0)
    assert registry.by_key(key) is session
    assert registry.by_key(key[:-1]) is None
    assert list(registry._by_key) == [key_digest(key)]
    assert len(compared) == 3
    assert {len(value) for pair in compared for value in pair} == {32}
    assert sessions.hmac is keys.hmac


def test_keys_have_256_random_bits_and_no_two_are_equal() -> None:
    made = {make() for make in (keys.new_session_key, keys.new_admin_key) for _ in range(100)}
    assert len(made) == 200
    assert min(len(key.rpartition("-")[2]) for key in made) > 0
    assert min(len(key) for key in made) >= len(keys.SESSION_PREFIX) + 43
