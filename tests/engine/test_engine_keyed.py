"""Engines behind a key: it is sent to those that it is for, on every way there is to them, and told to nobody else."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.engine.keyed import engine_clients
from agentrl.errors import ConfigError, EngineError
from agentrl.types import Sampling

KEY = "sk-engine-7f3a"


class Guarded:
    """A server that notes what keys it is given, and refuses all."""

    def __init__(self) -> None:
        self.keys: list[str | None] = []
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._refuse)
        self.server = TestServer(app)

    async def _refuse(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        known = {"/v1/models": {"data": [{"max_model_len": 64}]}, "/weight_info": {"weight_version": "default"}}
        if request.path in known:
            return web.json_response(known[request.path])
        return web.json_response({"error": "Unauthorized"}, status=401)


async def test_every_request_to_a_configured_engine_carries_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    guarded = Guarded()
    async with guarded.server as server:
        url = str(server.make_url("")).rstrip("/")
        client = engine_clients([url], "ENGINE_KEY")(url)
        await client.healthy()
        with pytest.raises(EngineError, match="answered 401"):
            await anext(client.stream([1], Sampling(), request_id="r"))
        await client.close()
    assert len(guarded.keys) == 4  # health, models, weight_info, generate
    assert set(guarded.keys) == {f"Bearer {KEY}"}


async def test_an_engine_that_was_added_later_is_not_told_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    guarded = Guarded()
    async with guarded.server as server:
        client = engine_clients(["http://127.0.0.1:1"], "ENGINE_KEY")(str(server.make_url("")))
        await client.healthy()
        await client.close()
    assert guarded.keys == [None]


async def test_no_key_is_sent_where_none_was_named() -> None:
    guarded = Guarded()
    async with guarded.server as server:
        url = str(server.make_url(""))
        client = engine_clients([url], None)(url)
        await client.healthy()
        await client.close()
    assert guarded.keys == [None]


async def test_a_refusal_of_a_keyed_engine_does_not_repeat_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    guarded = Guarded()
    async with guarded.server as server:
        url = str(server.make_url(""))
        client = engine_clients([url], "ENGINE_KEY")(url)
        with pytest.raises(EngineError) as refused:
            await anext(client.stream([1], Sampling(), request_id="r"))
        await client.close()
    assert KEY not in str(refused.value)
    assert KEY not in repr(client)


@pytest.mark.parametrize(("value", "why"), [(None, "not set"), ("", "not set"), ("two words", "no header carries it")])
def test_a_key_that_is_not_there_or_cannot_be_sent_is_said_at_once(
    monkeypatch: pytest.MonkeyPatch, value: str | None, why: str
) -> None:
    monkeypatch.delenv("ENGINE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("ENGINE_KEY", value)
    with pytest.raises(ConfigError, match=f"ENGINE_KEY.*{why}"):
        engine_clients(["http://127.0.0.1:1"], "ENGINE_KEY")


def test_a_key_beside_a_password_in_the_url_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", KEY)
    with pytest.raises(ConfigError, match="a user or a password"):
        engine_clients(["http://me:secret@127.0.0.1:1"], "ENGINE_KEY")
