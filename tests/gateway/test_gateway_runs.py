"""Several runs on one gateway: each has its key, its sessions and, if it wants, its engines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_builders import END, MemorySink, Opened, Served, always, continues, ids, letters, serving, user

from agentrl.gateway.keys import run_key, run_of
from agentrl.store.sql import SqlStore

ADMIN = "sk-agentrl-admin-of-the-test"


class Run:
    """One run's side of the control API."""

    def __init__(self, served: Served, key: str) -> None:
        self._served = served
        self._headers = {"Authorization": f"Bearer {key}"}

    async def send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self._served.http.request(method, path, json=body, headers=self._headers)

    async def open(self, **body: Any) -> Opened:
        opened = (await self.send("POST", "/sessions", body)).json()
        return Opened(self._served.http, opened["session_id"], opened["base_url"], opened["api_key"])

    async def says(self) -> str:
        """What the policy answers this run with."""
        answer = await (await self.open()).chat([user("q")])
        return str(answer["choices"][0]["message"]["content"])


async def run_of_name(served: Served, run_id: str) -> Run:
    response = await served.http.post("/runs", json={"run_id": run_id})
    assert response.status_code == 201, response.text
    return Run(served, response.json()["run_key"])


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# Keys


async def test_a_run_is_opened_with_the_admin_key_and_has_the_same_key_each_time() -> None:
    async with serving(always([END])) as served:
        first, again, other = [
            (await served.http.post("/runs", json={"run_id": name})).json() for name in ("a", "a", "b")
        ]
        assert set(first) == {"run_id", "run_key"}
        assert first == again
        assert first["run_key"] != other["run_key"]


@pytest.mark.parametrize("run_id", ["", ".a", "a/b", "a b", "ä", "x" * 101, "a\n"])
async def test_a_run_id_that_is_no_name_is_refused(run_id: str) -> None:
    async with serving(always([END])) as served:
        response = await served.http.post("/runs", json={"run_id": run_id})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "run_id")


@pytest.mark.parametrize("run_id", ["a", "a.b", "a.b.c", "sk-agentrl-run-a"])
def test_a_key_says_its_run_and_opens_no_other(run_id: str) -> None:
    key = run_key(ADMIN, run_id)
    assert run_of(key, ADMIN) == run_id
    for forged in (key.replace("run-", "run-x", 1), key[:-1], key + "0", run_key("another admin", run_id)):
        assert run_of(forged, ADMIN) is None


async def test_a_runs_key_outlives_the_gateway_and_not_its_admin_key() -> None:
    async with serving(always([END]), admin_key=ADMIN) as served:
        key = (await served.http.post("/runs", json={"run_id": "a"})).json()["run_key"]
    for admin_key, status in ((ADMIN, 201), ("sk-another", 401)):
        async with serving(always([END]), admin_key=admin_key) as served:
            assert (await Run(served, key).send("POST", "/sessions", {})).status_code == status


# Sessions


async def test_the_sessions_of_another_run_and_of_the_admin_do_not_exist_to_a_run() -> None:
    async with serving(always([END]), sink=MemorySink()) as served:
        mine, others = await run_of_name(served, "mine"), await run_of_name(served, "others")
        for session in (await others.open(), await served.open()):
            for method, path, body in [
                ("GET", "trajectory", None),
                ("POST", "finish", {}),
                ("POST", "reward", {"reward": 1.0}),
                ("DELETE", "", None),
                ("GET", "v1/models", None),
                ("POST", "v1/chat/completions", {"messages": [user("q")]}),
                ("POST", "v1/messages/count_tokens", {"messages": [user("q")]}),
            ]:
                response = await mine.send(method, f"/sessions/{session.id}/{path}".rstrip("/"), body)
                assert response.status_code == 404, (method, path)
            assert (await session.post(messages=[user("q")])).status_code == 200


async def test_a_runs_key_opens_rewards_finishes_and_deletes_its_own_sessions() -> None:
    async with serving(always([*ids("ok"), END])) as served:
        run = await run_of_name(served, "r")
        session = await run.open(session_id="s")
        await session.chat([user("q")])
        assert (await run.send("POST", "/sessions/s/reward", {"reward": 0.5})).status_code == 200
        assert (await run.send("POST", "/sessions/s/finish", {})).json()["reward"] == 0.5
        assert (await run.send("GET", "/sessions/s/trajectory")).json()["metadata"] == {"run_id": "r"}
        assert (await run.send("DELETE", "/sessions/s")).status_code == 204


async def test_the_run_of_a_session_is_in_its_metadata_whatever_the_run_says() -> None:
    async with serving(always([END])) as served:
        run = await run_of_name(served, "r")
        session = await run.open(metadata={"run_id": "another", "index": 3})
        assert (await served.trajectory(session))["metadata"] == {"run_id": "r", "index": 3}


async def test_the_admin_sees_the_sessions_of_every_run() -> None:
    async with serving(always([END])) as served:
        session = await (await run_of_name(served, "r")).open()
        assert (await served.finish(session, stop_reason="done"))["stop_reason"] == "done"


async def test_a_stored_session_of_another_run_does_not_exist_to_a_run_either(tmp_path: Path) -> None:
    """Not in the next gateway, which knows it from the store alone."""
    url = f"sqlite:///{tmp_path / 't.db'}"
    sink = SqlStore(url)
    async with serving(always([END]), admin_key=ADMIN, sink=sink) as served:
        run = await run_of_name(served, "others")
        session = await run.open(session_id="s")
        await session.chat([user("q")])
        await served.finish(session)
    async with serving(always([END]), admin_key=ADMIN, sink=sink) as served:
        assert error(await (await run_of_name(served, "mine")).send("GET", "/sessions/s/trajectory")) == (
            404,
            "session_not_found",
        )
        found = await (await run_of_name(served, "others")).send("GET", "/sessions/s/trajectory")
        assert (found.status_code, found.json()["session_id"]) == (200, "s")
    sink.close()


async def test_a_runs_key_opens_no_run_and_reads_no_metrics() -> None:
    async with serving(always([END])) as served:
        run = await run_of_name(served, "r")
        assert error(await run.send("POST", "/runs", {"run_id": "other"})) == (403, "admin_only")
        assert error(await run.send("GET", "/metrics")) == (403, "admin_only")


# Engines


async def test_a_run_without_engines_is_served_by_the_shared_ones() -> None:
    async with serving(always([*ids("shared"), END])) as served:
        run = await run_of_name(served, "r")
        assert await run.says() == "shared"
        assert [e["id"] for e in (await run.send("GET", "/engines")).json()["engines"]] == ["engine-0"]


async def test_a_run_with_engines_of_its_own_uses_them_alone_and_others_never_do() -> None:
    async with serving(always([*ids("shared"), END]), always([*ids("own"), END]), engine_urls=()) as served:
        shared, own = (engine.url for engine in served.engines)
        await served.http.post("/engines", json={"url": shared})
        run, other = await run_of_name(served, "r"), await run_of_name(served, "o")
        added = await run.send("POST", "/engines", {"url": own, "id": "mine"})
        assert (added.status_code, added.json()["id"]) == (201, "mine")
        assert [await run.says() for _ in range(2)] == ["own", "own"]
        assert [await other.says() for _ in range(2)] == ["shared", "shared"]
        assert [e["url"] for e in (await run.send("GET", "/engines")).json()["engines"]] == [own]
        assert [e["url"] for e in (await served.http.get("/engines")).json()["engines"]] == [shared]


async def test_a_run_does_not_change_shared_engines_nor_those_of_another_run() -> None:
    async with serving(always([*ids("shared"), END]), always([*ids("own"), END]), engine_urls=()) as served:
        shared, own = (engine.url for engine in served.engines)
        await served.http.post("/engines", json={"url": shared, "id": "shared"})
        owner, run = await run_of_name(served, "owner"), await run_of_name(served, "r")
        await owner.send("POST", "/engines", {"url": own, "id": "own"})
        for engine_id in ("shared", "own"):
            assert error(await run.send("PUT", f"/engines/{engine_id}", {"routable": False})) == (
                404,
                "engine_not_found",
            )
            assert error(await run.send("DELETE", f"/engines/{engine_id}")) == (404, "engine_not_found")
        assert [await who.says() for who in (run, owner)] == ["shared", "own"]


async def test_a_run_whose_last_engine_went_is_served_by_the_shared_ones_again() -> None:
    async with serving(always([*ids("shared"), END]), always([*ids("own"), END]), engine_urls=()) as served:
        shared, own = (engine.url for engine in served.engines)
        await served.http.post("/engines", json={"url": shared})
        run = await run_of_name(served, "r")
        await run.send("POST", "/engines", {"url": own, "id": "mine"})
        assert await run.says() == "own"
        assert (await run.send("DELETE", "/engines/mine")).status_code == 204
        assert await run.says() == "shared"


async def test_a_session_that_is_finished_weighs_on_no_engine_that_it_ever_used() -> None:
    async with serving(always([*ids("shared"), END]), always([*ids("own"), END]), engine_urls=()) as served:
        shared, own = (engine.url for engine in served.engines)
        await served.http.post("/engines", json={"url": shared})
        run = await run_of_name(served, "r")
        session = (await run.send("POST", "/sessions", {})).json()["session_id"]
        url, body = f"/sessions/{session}/v1/chat/completions", {"messages": [user("q")]}
        assert (await run.send("POST", url, body)).status_code == 200
        await run.send("POST", "/engines", {"url": own, "id": "mine"})
        assert (await run.send("POST", url, body)).status_code == 200
        assert (await run.send("POST", f"/sessions/{session}/finish", {})).status_code == 200
        assert [engine.sessions for engine in served.server.gateway.pools.engines] == [set(), set()]


async def test_a_call_of_a_run_whose_last_engine_goes_is_answered_by_the_shared_ones() -> None:
    """In the middle of its answer: it goes on from the tokens that it has."""
    async with serving(*[continues([*letters("hello"), END])] * 2) as served:
        own = served.engines[1]
        await served.http.delete("/engines/engine-1")
        run = await run_of_name(served, "a")
        await run.send("POST", "/engines", {"url": own.url, "id": "mine"})
        own.hold()
        own.allow(2)
        call = asyncio.create_task(run.says())
        await own.until(lambda: len(own.requests[0].token_ids) == 2 if own.requests else False)
        assert (await run.send("DELETE", "/engines/mine")).status_code == 204
        assert await call == "hello"
