"""The control API and its keys."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import msgspec
import pytest
from gateway_builders import END, MemorySink, Served, always, ids, renderer, serving, user

from agentrl.engine.client import HttpEngineClient
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.server import GatewayServer
from agentrl.types import Task, Trajectory

JSON = {"Content-Type": "application/json"}
TASK = {"id": "t1", "env_id": "e", "seed": 3, "options": {"a": 1}, "split": "train"}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def error_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


# The contract


async def test_a_session_opens_with_a_base_url_that_an_sdk_can_use() -> None:
    async with serving(always([END])) as served:
        response = await served.http.post("/sessions", json={"session_id": "s1", "task": TASK, "mode": "eval"})
        opened = response.json()
        assert set(opened) == {"session_id", "base_url", "api_key"}
        assert opened["base_url"] == f"{served.server.url}/sessions/s1/v1"


async def test_a_task_needs_no_more_than_an_id() -> None:
    async with serving(always([END])) as served:
        session = await served.open(task={"id": "x"})
        assert (await served.trajectory(session))["task"] == {
            "id": "x",
            "env_id": "",
            "seed": 0,
            "options": {},
            "split": "train",
            "limits": None,
            "source": "",
        }


async def test_a_trajectory_has_the_fields_of_the_contract_and_decodes_to_the_type() -> None:
    async with serving(always([*ids("ok"), END])) as served:
        session = await served.open(task=TASK, metadata={"group_id": "g", "index": 1})
        await session.chat([user("q")])
        await served.http.post(f"/sessions/{session.id}/reward", json={"reward": 0.5, "components": {"form": None}})
        await served.finish(session, stop_reason="done")
        response = await served.http.get(f"/sessions/{session.id}/trajectory")
        found = response.json()
        contract = {"session_id", "task", "stop_reason", "reward", "components", "calls", "rows", "dropped"}
        assert contract <= set(found)
        assert set(found["rows"][0]) == {"token_ids", "loss_mask", "logprobs", "versions"}
        trajectory = msgspec.json.decode(response.content, type=Trajectory)
        assert trajectory.task == msgspec.convert(TASK, Task)
        assert (trajectory.stop_reason, trajectory.reward, trajectory.components) == ("done", 0.5, {"form": None})
        assert trajectory.metadata == {"group_id": "g", "index": 1}


async def test_finish_saves_before_it_answers_and_may_be_repeated() -> None:
    sink = MemorySink()
    async with serving(always([*ids("ok"), END]), sink=sink) as served:
        session = await served.open()
        await session.chat([user("q")])
        summary = await served.finish(session, stop_reason="done")
        assert sink.saved[session.id].stop_reason == "done"
        assert (summary["calls"], summary["rows"], summary["trained_tokens"]) == (1, 1, len(ids("ok")) + 1)
        assert await served.finish(session, stop_reason="cancelled") == summary


async def test_after_finish_model_calls_get_a_409_that_sdks_do_not_retry() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        await served.finish(session)
        response = await session.post(messages=[user("q")])
        assert await error_of(response) == (409, "session_sealed")
        assert response.headers["x-should-retry"] == "false"


async def test_a_reward_before_finish_is_saved_and_one_after_it_is_told_to_the_store() -> None:
    sink = MemorySink()
    async with serving(always([END]), sink=sink) as served:
        session = await served.open()
        url = f"/sessions/{session.id}/reward"
        await served.http.post(url, json={"reward": 1.0})
        await served.finish(session)
        assert sink.saved[session.id].reward == 1.0
        assert (await served.http.post(url, json={"reward": None, "components": {"a": 1}})).status_code == 200
        assert sink.rewards == [(session.id, None, {"a": 1.0})]
        response = await served.http.post(url, json={"reward": 1, "call_id": "chatcmpl-1"})
        assert response.status_code == 409


async def test_a_reward_of_a_call_is_kept_with_it() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        answer = await session.chat([user("q")])
        await served.http.post(f"/sessions/{session.id}/reward", json={"reward": 0.5, "call_id": answer["id"]})
        trajectory = await served.trajectory(session)
        assert (trajectory["reward"], trajectory["calls"][0]["reward"]) == (None, 0.5)


async def test_a_forgotten_session_is_gone_with_its_key() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        assert (await served.http.delete(f"/sessions/{session.id}")).status_code == 204
        assert (await session.post(messages=[user("q")])).status_code == 401
        assert (await served.http.get(f"/sessions/{session.id}/trajectory")).status_code == 404


async def test_engines_come_and_go_while_it_runs() -> None:
    async with serving(always([*ids("one"), END]), always([*ids("two"), END]), engine_urls=()) as served:
        first, second = (engine.url for engine in served.engines)
        added = await served.http.post("/engines", json={"url": first, "id": "a", "version": 0})
        assert added.json() == {
            "id": "a",
            "url": first,
            "healthy": True,
            "version": 0,
            "routable": True,
            "in_flight": 0,
            "breaker": "closed",
            "last_error": None,
        }
        session = await served.open()
        assert (await session.chat([user("q")]))["choices"][0]["message"]["content"] == "one"
        await served.http.post("/engines", json={"url": second})
        assert (await served.http.delete("/engines/a")).status_code == 204
        assert (await session.chat([user("q")]))["choices"][0]["message"]["content"] == "two"


async def test_an_engine_that_is_held_back_gets_no_call() -> None:
    async with serving(always([*ids("one"), END]), always([*ids("two"), END])) as served:
        told = await served.http.put("/engines/engine-0", json={"routable": False})
        assert (told.json()["healthy"], told.json()["routable"]) == (True, False)
        answers = [await (await served.open()).chat([user("q")]) for _ in range(3)]
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["two"] * 3


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"colour": "red"}, "colour"),
        ({"mode": "play"}, "mode"),
        ({"task": {"seed": 1}}, "task"),
        ({"task": {**TASK, "colour": "red"}}, "task.colour"),
        ({"limits": {"max_calls": 0}}, "limits"),
        ({"limits": {"max_turns": 1}}, "limits.max_turns"),
        ({"sampling": {"top_p": 0.5}}, "sampling.top_p"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature"),
        ({"session_id": "a/b"}, "session_id"),
        ({"session_id": ".."}, "session_id"),
        ({"sampling": {"stop": [""]}}, "sampling.stop"),
        ({"limits": {"deadline_s": math.nan}}, "limits"),
        ({"metadata": {"x": math.nan}}, "metadata"),
        ({"metadata": {"x": [math.inf]}}, "metadata"),
        ({"metadata": {"\ud800": 1}}, "metadata"),
        ({"task": {"id": "\ud800", "seed": 1}}, "task"),
        ({"task": {"id": "t", "seed": 1, "options": {"x": math.nan}}}, "task"),
        ({"metadata": {"group_id": 7}}, "metadata"),
        ({"metadata": {"index": "0"}}, "metadata"),
    ],
)
async def test_a_session_that_cannot_be_opened_names_the_field(body: dict[str, Any], named: str) -> None:
    async with serving(always([END])) as served:
        response = await served.http.post(
            "/sessions", content=json.dumps(body), headers=JSON
        )  # NaN as Python writes it
        assert (response.status_code, response.json()["error"]["param"]) == (400, named)


async def test_a_stop_reason_that_no_store_takes_is_refused_and_the_session_can_still_be_finished() -> None:
    sink = MemorySink()
    async with serving(always([END]), sink=sink) as served:
        session = await served.open()
        half = '{"stop_reason": "\\ud800"}'
        response = await served.http.post(f"/sessions/{session.id}/finish", content=half, headers=JSON)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "stop_reason")
        await served.finish(session, stop_reason="done")
        assert sink.saved[session.id].stop_reason == "done"


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"high"'])
async def test_a_reward_that_is_no_finite_number_is_refused(reward: str) -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        body = f'{{"reward": {reward}}}'
        response = await served.http.post(f"/sessions/{session.id}/reward", content=body, headers=JSON)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "reward")


# Keys (invariant 14)


def calls_of(served: Served, session_id: str) -> list[tuple[str, str, Any]]:
    base = f"/sessions/{session_id}"
    return [
        ("POST", f"{base}/v1/chat/completions", {"messages": [user("q")]}),
        ("GET", f"{base}/v1/models", None),
        ("POST", f"{base}/reward", {"reward": 1.0}),
        ("POST", f"{base}/finish", {}),
        ("GET", f"{base}/trajectory", None),
        ("DELETE", base, None),
        ("POST", "/sessions", {}),
        ("GET", "/engines", None),
        ("POST", "/engines", {"url": "http://127.0.0.1:9"}),
        ("PUT", "/engines/engine-0", {"routable": False}),
        ("DELETE", "/engines/engine-0", None),
        ("GET", "/metrics", None),
    ]


async def test_a_session_key_opens_nothing_of_another_session_and_nothing_of_the_admin() -> None:
    async with serving(always([END])) as served:
        mine, other = await served.open(), await served.open()
        for method, url, body in calls_of(served, other.id):
            response = await served.http.request(method, url, json=body, headers=bearer(mine.api_key))
            assert response.status_code == 403, (method, url)
        assert (await other.post(messages=[user("q")])).status_code == 200


async def test_no_key_and_a_wrong_key_open_nothing() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        for method, url, body in calls_of(served, session.id):
            for headers in ({"Authorization": ""}, bearer("sk-agentrl-wrong"), {"Authorization": "Basic x"}):
                response = await served.http.request(method, url, json=body, headers=headers)
                assert response.status_code == 401, (method, url, headers)


async def test_a_request_without_a_key_learns_nothing_about_its_body() -> None:
    async with serving(always([END])) as served:
        for url in ("/sessions", "/engines", "/sessions/x/finish", "/sessions/x/reward", "/v1/chat/completions"):
            response = await served.http.post(url, json={"colour": 3}, headers={"Authorization": ""})
            assert response.status_code == 401, url


async def test_a_session_is_named_by_url_by_key_or_by_header_with_the_admin_key() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        body = {"messages": [user("q")]}
        admin = bearer(served.server.admin_key)
        for url, headers in [
            (f"/sessions/{session.id}/v1/chat/completions", admin),
            (f"/sessions/{session.id}/v1/chat/completions", bearer(session.api_key)),
            ("/v1/chat/completions", bearer(session.api_key)),
            ("/v1/chat/completions", {"x-api-key": session.api_key, "Authorization": ""}),
            ("/v1/chat/completions", {"x-api-key": session.api_key, "Authorization": "Bearer"}),
            ("/v1/chat/completions", {**admin, "X-Session-ID": session.id}),
        ]:
            assert (await served.http.post(url, json=body, headers=headers)).status_code == 200, url
        assert len((await served.trajectory(session))["calls"]) == 6
        unnamed = await served.http.post("/v1/chat/completions", json=body, headers=admin)
        assert (unnamed.status_code, unnamed.json()["error"]["param"]) == (400, "X-Session-ID")


async def test_a_sessions_key_may_reward_it_unless_the_admin_kept_that() -> None:
    async with serving(always([END])) as served:
        for reward_by, status in (("session", 200), ("admin", 403)):
            session = await served.open(reward_by=reward_by)
            response = await served.http.post(
                f"/sessions/{session.id}/reward", json={"reward": 1}, headers=bearer(session.api_key)
            )
            assert response.status_code == status


async def test_keys_are_in_no_log_and_no_metric(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(always([END])) as served:
        session = await served.open()
        await session.chat([user("q")])
        await session.post(messages=3)
        await served.http.get("/engines", headers=bearer("sk-agentrl-wrong"))
        metrics = (await served.http.get("/metrics")).text
        for key in (session.api_key, served.server.admin_key, "sk-agentrl-wrong"):
            assert key not in caplog.text
            assert key not in metrics


async def test_health_is_open_and_an_unknown_url_is_a_clean_404() -> None:
    async with serving(always([END])) as served:
        assert (await served.http.get("/health", headers={"Authorization": ""})).json() == {"status": "ok"}
        assert await error_of(await served.http.get("/v2/nothing")) == (404, "not_found")


async def test_the_shape_of_the_control_api_is_not_told_to_strangers() -> None:
    async with serving(always([END])) as served:
        stranger = {"Authorization": "Bearer x"}
        assert await error_of(await served.http.get("/openapi.json", headers=stranger)) == (401, "invalid_api_key")


async def test_metrics_count_requests_tokens_and_branches() -> None:
    async with serving(always([*ids("a"), END])) as served:
        session = await served.open()
        await session.chat([user("q")])
        await session.chat([user("rewritten")])
        text = (await served.http.get("/metrics")).text
        assert 'agentrl_gateway_requests_total{dialect="chat",status="200"} 2.0' in text
        assert 'agentrl_gateway_tokens_total{kind="sampled"} 4.0' in text
        assert 'agentrl_gateway_branches_total{cause="rewritten"} 1.0' in text


@pytest.mark.parametrize("key", [" padded", "new\nline", "clé", "two words"])
def test_an_admin_key_that_no_client_can_send_is_a_configuration_error_that_does_not_tell_it(key: str) -> None:
    with pytest.raises(ConfigError, match="the admin key holds spaces") as refused:
        GatewayServer(GatewayConfig(), renderer=renderer(), engine_factory=HttpEngineClient, admin_key=key)
    assert key not in str(refused.value)
