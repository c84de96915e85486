"""What the key in front of an engine on a network lets through."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentrl.engine.config import EngineConfig
from agentrl.engine.guard import KEY_VARIABLE, KeyGuard
from agentrl.engine.launch import server_environment, server_flags
from agentrl.engine.replica import EngineReplica
from agentrl.errors import EngineError


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"in"})


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> httpx.AsyncClient:
    monkeypatch.setenv(KEY_VARIABLE, "the-key")
    return httpx.AsyncClient(transport=httpx.ASGITransport(KeyGuard(answer)), base_url="http://engine")


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/pause", "/update_weights", "/metrics", "//pause", "/docs"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
async def test_without_the_key_nothing_is_answered(client: httpx.AsyncClient, method: str, path: str):
    assert (await client.request(method, path)).status_code == 401


@pytest.mark.parametrize("header", ["Bearer the-ke", "Bearer", "Basic the-key", "the-key", "Bearer the-key the-key"])
async def test_another_key_or_scheme_opens_nothing(client: httpx.AsyncClient, header: str):
    assert (await client.get("/health", headers={"authorization": header})).status_code == 401


async def test_two_keys_in_one_request_open_nothing(client: httpx.AsyncClient):
    headers = [("authorization", "Bearer the-key"), ("authorization", "Bearer other")]
    assert (await client.get("/health", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", ["/health", "/pause"])
async def test_with_the_key_everything_is_passed_on(client: httpx.AsyncClient, path: str):
    answered = await client.post(path, headers={"authorization": "bearer the-key"})
    assert (answered.status_code, answered.text) == (200, "in")


async def test_a_websocket_without_the_key_is_closed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(KEY_VARIABLE, "the-key")
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await KeyGuard(answer)({"type": "websocket", "headers": []}, send, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_a_server_without_a_key_does_not_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(KeyError, match=KEY_VARIABLE):
        KeyGuard(answer)


def test_a_guarded_server_is_started_with_the_guard_and_its_key(tmp_path: Path):
    flags = server_flags("model", EngineConfig(), 1, host="10.0.0.5", guarded=True)
    assert flags[flags.index("--host") + 1] == "10.0.0.5"
    module, _, name = flags[flags.index("--middleware") + 1].rpartition(".")
    assert getattr(importlib.import_module(module), name) is KeyGuard
    assert server_environment(EngineConfig(), tmp_path, {}, key="the-key")[KEY_VARIABLE] == "the-key"
    assert "--middleware" not in server_flags("model", EngineConfig(), 1)


def test_an_engine_on_a_network_without_a_key_is_refused(tmp_path: Path):
    with pytest.raises(EngineError, match=r"10\.0\.0\.5 needs a key"):
        EngineReplica("model", EngineConfig(), logs_dir=tmp_path, weights_dir=tmp_path, host="10.0.0.5")
