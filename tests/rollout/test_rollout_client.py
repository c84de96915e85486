"""The gateway's client: what it sends, what it sends again, and what it never does twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from pydantic import ValidationError

from agentrl import retry
from agentrl.errors import ConfigError, ContextOverflow, EnvironmentFault, GatewayError, SessionLimitReached
from agentrl.gateway.config import GatewayConfig
from agentrl.messages import user
from agentrl.rollout.client import HttpGateway, HttpSession
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.json_client import JsonClient, Retryable
from agentrl.rollout.ports import SessionRequest
from agentrl.types import Limits, Sampling, StopReason, Task

REQUEST = SessionRequest(
    task=Task(id="t", env_id="e", seed=1, options={"a": 1}),
    mode="train",
    sampling=Sampling(temperature=0.5, max_tokens=9),
    limits=Limits(max_calls=3, deadline_s=100.0),
    metadata={"group_id": "g", "index": 0},
)
COMPLETION = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"completion_tokens": 2},
}
Answer = Callable[[], web.Response]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_BACKOFF_S", 0.0)
    monkeypatch.setattr(retry, "MAX_RETRY_AFTER_S", 0.0)


class FakeGateway:
    """Answers each path from its own list of answers, the last one again and again."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.idempotency_keys: list[str | None] = []  # of chats
        self.answers: dict[str, list[Answer]] = {}
        self.url = ""

    def paths(self) -> list[str]:
        return [path for path, _, _ in self.asked]

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((request.path, await request.json(), request.headers["Authorization"]))
        if request.path == CHAT:
            self.idempotency_keys.append(request.headers.get("Idempotency-Key"))
        answers = self.answers[request.path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is dropped:
            assert request.transport is not None
            request.transport.abort()
        return answer()


def ok(body: Any, status: int = 200) -> Answer:
    return lambda: web.json_response(body, status=status)


def error(status: int, code: str, *, param: str | None = None, **headers: str) -> Answer:
    body = {"error": {"message": f"because {code}", "code": code, "type": "x", "param": param}}
    return lambda: web.json_response(body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})


def dropped() -> web.Response:
    return web.Response()


@asynccontextmanager
async def gateway(**settings: Any) -> AsyncIterator[tuple[FakeGateway, HttpGateway]]:
    fake = FakeGateway()
    app = web.Application()
    app.router.add_post("/{path:.*}", fake.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    opened = {"session_id": "s1", "base_url": f"{fake.url}/sessions/s1/v1", "api_key": "session-key"}
    fake.answers["/sessions"] = [ok(opened, 201)]
    client = HttpGateway(fake.url + "/", "admin-key", RolloutConfig(**settings))
    try:
        yield fake, client
    finally:
        await client.close()
        await runner.cleanup()


CHAT = "/sessions/s1/v1/chat/completions"


async def ask(session: HttpSession) -> Any:
    return await session.chat([user("?")], tools=[], max_tokens=7)


async def test_a_session_is_opened_with_the_admin_key_and_pinned() -> None:
    async with gateway() as (fake, client):
        session = await client.open_session(REQUEST)
        assert session.id == "s1"
        ((path, body, key),) = fake.asked
        assert (path, key) == ("/sessions", "Bearer admin-key")
        assert body["task"] == {
            "id": "t", "env_id": "e", "seed": 1, "options": {"a": 1}, "split": "train", "limits": None, "source": "",
        }  # fmt: skip
        assert (body["mode"], body["metadata"]) == ("train", {"group_id": "g", "index": 0})
        assert body["sampling"]["temperature"] == 0.5
        assert "max_tokens" not in body["sampling"]
        assert body["limits"] == {"max_calls": 3, "deadline_s": 130.0}
        assert body["reward_by"] == "admin"


async def test_a_chat_is_asked_under_the_sessions_own_key() -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [ok(COMPLETION)]
        completion = await ask(await client.open_session(REQUEST))
        assert (completion.message.text, completion.finish_reason, completion.num_tokens) == ("hi", "stop", 2)
        path, body, key = fake.asked[-1]
        assert (path, key) == (CHAT, "Bearer session-key")
        assert body == {"model": "policy", "messages": [{"role": "user", "content": "?"}], "max_tokens": 7}


async def test_reward_and_finish_go_to_the_control_api() -> None:
    async with gateway() as (fake, client):
        fake.answers |= {"/sessions/s1/reward": [ok({})], "/sessions/s1/finish": [ok({})]}
        session = await client.open_session(REQUEST)
        await session.reward(None, {"env": None})
        await session.finish(StopReason.ENV_ERROR)
        assert fake.asked[1:] == [
            ("/sessions/s1/reward", {"reward": None, "components": {"env": None}}, "Bearer admin-key"),
            ("/sessions/s1/finish", {"stop_reason": "env_error"}, "Bearer admin-key"),
        ]


async def test_a_busy_gateway_is_asked_again() -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [
            error(429, "queue_full", Retry_After="1"),
            error(503, "x", Retry_After="1"),
            ok(COMPLETION),
        ]
        assert (await ask(await client.open_session(REQUEST))).message.text == "hi"
        assert fake.paths().count(CHAT) == 3


async def test_attempts_are_bounded() -> None:
    async with gateway(max_attempts=4) as (fake, client):
        fake.answers[CHAT] = [error(503, "no_engine", Retry_After="1")]
        session = await client.open_session(REQUEST)
        with pytest.raises(Retryable, match="503: because no_engine"):
            await ask(session)
        assert fake.paths().count(CHAT) == 4


@pytest.mark.parametrize("answer", [error(503, "store_failed"), error(500, "internal_error")])
async def test_a_chat_that_may_have_been_sampled_is_never_sent_again(answer: Answer) -> None:
    """Case 84."""
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [answer, ok(COMPLETION)]
        session = await client.open_session(REQUEST)
        with pytest.raises(GatewayError):
            await ask(session)
        assert fake.paths().count(CHAT) == 1


async def test_a_chat_whose_connection_broke_is_sent_again_as_the_same_request() -> None:
    """The gateway knows it by its key, also one that was started again, and answers from its record."""
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [dropped, dropped, ok(COMPLETION)]
        session = await client.open_session(REQUEST)
        await ask(session)
        first, *again = fake.idempotency_keys
        assert first is not None
        assert again == [first, first]
        fake.answers[CHAT] = [ok(COMPLETION)]
        await ask(session)
        assert fake.idempotency_keys[-1] != first, "the next call is another request"


@pytest.mark.parametrize("answer", [dropped, error(503, "store_failed"), error(502, "bad_gateway")])
async def test_a_control_call_that_got_lost_is_sent_again(answer: Answer) -> None:
    async with gateway() as (fake, client):
        fake.answers["/sessions/s1/finish"] = [answer, answer, ok({})]
        session = await client.open_session(REQUEST)
        await session.finish(StopReason.DONE)
        assert fake.paths().count("/sessions/s1/finish") == 3


async def test_a_refusal_is_not_asked_again() -> None:
    async with gateway() as (fake, client):
        fake.answers["/sessions"] = [error(401, "invalid_api_key")]
        with pytest.raises(GatewayError, match="401: because invalid_api_key"):
            await client.open_session(REQUEST)
        assert len(fake.asked) == 1


async def test_a_full_context_is_recognised() -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [error(400, "context_length_exceeded")]
        with pytest.raises(ContextOverflow):
            await ask(await client.open_session(REQUEST))


async def test_a_limit_of_the_session_is_recognised_by_name() -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [error(400, "session_limit_reached", param="limits.max_calls")]
        with pytest.raises(SessionLimitReached) as caught:
            await ask(await client.open_session(REQUEST))
        assert caught.value.limit == "max_calls"


@pytest.mark.parametrize("code", ["invalid_request", "unknown_parameter", "unsupported_parameter", "body_too_large"])
async def test_messages_that_the_gateway_does_not_take_are_the_environments_fault(code: str) -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [error(400, code)]
        with pytest.raises(EnvironmentFault, match=f"because {code}"):
            await ask(await client.open_session(REQUEST))


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": {}}], "usage": {}}, [1]])
async def test_an_answer_of_another_shape_is_a_gateway_error(body: Any) -> None:
    async with gateway() as (fake, client):
        fake.answers[CHAT] = [ok(body)]
        with pytest.raises(GatewayError, match="no chat completion"):
            await ask(await client.open_session(REQUEST))


async def test_no_gateway_is_a_gateway_error_that_names_the_url() -> None:
    async with gateway() as (fake, _):
        url = fake.url
    client = HttpGateway(url, "k", RolloutConfig(max_attempts=2, gateway_wait_s=0))
    with pytest.raises(GatewayError, match=f"cannot reach {url}"):
        await client.open_session(REQUEST)
    await client.close()


async def test_task_options_that_are_no_json_are_named() -> None:
    async with gateway() as (fake, client):
        task = Task(id="t9", env_id="e", seed=1, options={"a": object()})
        request = SessionRequest(task=task, mode="train", sampling=Sampling(), limits=Limits())
        with pytest.raises(ConfigError, match="options of task t9 are not JSON"):
            await client.open_session(request)
        assert fake.asked == []


async def test_finish_is_waited_for_longer_than_the_gateway_may_wait_for_its_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sealing takes up to 10 s and saving up to 120 s, the most that a gateway can be configured for."""
    waits = []

    async def post(self: JsonClient, url: str, body: Any, key: str, timeout_s: float, *, repeatable: bool) -> Any:
        waits.append(timeout_s)
        return {}

    monkeypatch.setattr(JsonClient, "post", post)
    session = HttpSession(HttpGateway("http://g", "k", RolloutConfig()), "s", "http://g/sessions/s/v1", "key")
    await session.reward(1.0, {})
    await session.finish(StopReason.DONE)
    assert min(waits) > 130
    with pytest.raises(ValidationError):
        GatewayConfig(save_timeout_s=121)


async def test_a_gateway_that_does_not_answer_ends_in_the_timeout() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    base_url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    client = HttpGateway("unused", "k", RolloutConfig(request_timeout_s=0.05))
    with pytest.raises(GatewayError, match=r"did not answer within 0\.05 s"):
        await ask(HttpSession(client, "s1", base_url, "k"))
    await client.close()
    server.close()
