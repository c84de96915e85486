"""Requests that are sent again: one turn in the record, the one that the agent saw (case 84)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import openai
import pytest
from flaky_proxy import flaky
from gateway_builders import END, MemorySink, Opened, Served, always, eventually, letters, says, serving, user

from agentrl.engine.scripted import Fault

ONE, TWO = [*letters("one"), END], [*letters("two"), END]


# Case 84: the real SDKs over a network that breaks


@pytest.fixture(autouse=True)
def _impatient_sdks(monkeypatch: pytest.MonkeyPatch) -> None:
    for sdk in ("openai", "anthropic"):
        monkeypatch.setattr(f"{sdk}._base_client.INITIAL_RETRY_DELAY", 0.01)


async def openai_chat(base_url: str, key: str, *, stream: bool) -> str:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=2) as sdk:
        request: dict[str, Any] = {"model": "policy", "messages": [user("q")]}
        if not stream:
            return (await sdk.chat.completions.create(**request)).choices[0].message.content or ""
        chunks = await sdk.chat.completions.create(**request, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices])


async def openai_responses(base_url: str, key: str, *, stream: bool) -> str:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=2) as sdk:
        if not stream:
            return (await sdk.responses.create(model="policy", input="q")).output_text
        events = await sdk.responses.create(model="policy", input="q", stream=True)
        return "".join([event.delta async for event in events if event.type == "response.output_text.delta"])


async def anthropic_messages(base_url: str, key: str, *, stream: bool) -> str:
    url = base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=url, api_key=key, auth_token=None, max_retries=2) as sdk:
        request: dict[str, Any] = {"model": "policy", "max_tokens": 16, "messages": [user("q")]}
        if not stream:
            return "".join(block.text for block in (await sdk.messages.create(**request)).content)
        async with sdk.messages.stream(**request) as events:
            return "".join([text async for text in events.text_stream])


Agent = Callable[..., Awaitable[str]]
LAST_WORDS = {
    (openai_chat, False): b'"usage"',
    (openai_chat, True): b"[DONE]",
    (openai_responses, False): b'"usage"',
    (openai_responses, True): b"response.completed",
    (anthropic_messages, False): b'"usage"',
    (anthropic_messages, True): b"message_stop",
}
agents = pytest.mark.parametrize("agent", [openai_chat, openai_responses, anthropic_messages])
ways = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


async def repeats(served: Served, how: str) -> float:
    text = (await served.http.get("/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith(f'agentrl_gateway_repeats_total{{how="{how}"}}')]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


@agents
@ways
async def test_case_84_an_answer_that_the_network_lost_is_given_again_and_not_sampled_again(
    agent: Agent, stream: bool
) -> None:
    async with serving(says(ONE, TWO)) as served, flaky(served.server.url) as proxy:
        proxy.swallow(LAST_WORDS[agent, stream])
        session = await served.open()
        assert await agent(proxy.through(session.base_url), session.api_key, stream=stream) == "one"
        trajectory = await served.trajectory(session)
        assert [call["token_ids"] for call in trajectory["calls"]] == [ONE]
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [len(ONE)]
        assert (trajectory["dropped"], len(served.engine.requests)) == ({}, 1)
        assert await repeats(served, "answered") == 1


@agents
@ways
async def test_case_84_a_request_that_broke_off_while_it_was_sampled_is_sampled_anew_and_trained_once(
    agent: Agent, stream: bool
) -> None:
    async with serving(says(ONE, TWO)) as served, flaky(served.server.url) as proxy:
        engine, session = served.engine, await served.open()
        engine.hold()
        if stream:
            proxy.swallow(b"\x00")  # nothing comes through: once it has begun, no SDK retries a stream
        answer = asyncio.create_task(agent(proxy.through(session.base_url), session.api_key, stream=stream))
        await engine.until(lambda: bool(engine.requests))
        engine.allow(2)
        await engine.until(lambda: len(engine.requests[0].token_ids) == 2)
        proxy.cut()
        await engine.until(lambda: engine.requests[0].aborted)
        engine.release()
        assert await answer == "two"
        trajectory = await served.trajectory(session)
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [len(TWO)]
        assert trajectory["dropped"] == {"aborted": 2}
        assert await repeats(served, "sampled") == 1


async def test_case_84_a_503_is_retried_by_the_sdk_and_leaves_one_turn() -> None:
    async with serving(always(ONE), breaker_backoff_s=0.01) as served:
        served.engine.fail_next(*[Fault(kind="die")] * 3)
        session = await served.open()
        assert await openai_chat(session.base_url, session.api_key, stream=False) == "one"
        trajectory = await served.trajectory(session)
        assert [call["token_ids"] for call in trajectory["calls"]] == [ONE]
        assert len(served.engine.requests) == 4


async def test_case_84_an_answer_that_nobody_took_is_not_trained() -> None:
    """Its client left while it was being written down, and did not come back."""

    class Slow(MemorySink):
        def append(self, entries: Any) -> None:
            if opened:
                writing.set()
                released.wait(10)
            super().append(entries)

    opened: list[bool] = []
    writing, released = threading.Event(), threading.Event()
    async with serving(says(ONE), sink=Slow()) as served:
        session = await served.open()
        opened.append(True)
        call = asyncio.create_task(session.post(messages=[user("q")]))
        assert await asyncio.to_thread(writing.wait, 10)
        call.cancel()
        registered = served.server.gateway.sessions.get(session.id)
        await eventually(lambda: not registered.in_flight)
        released.set()
        summary = await served.finish(session)
        assert (summary["rows"], summary["dropped"]) == (0, {"undelivered": len(ONE)})


# The same over plain HTTP


async def post(session: Opened, text: str = "q", **headers: str) -> Any:
    return await session.http.post(
        f"{session.base_url}/chat/completions",
        json={"messages": [user(text)]},
        headers={"Authorization": f"Bearer {session.api_key}", **headers},
    )


async def test_equal_bodies_without_a_marker_are_two_turns() -> None:
    async with serving(says(ONE, TWO)) as served:
        session = await served.open()
        answers = [(await post(session)).json() for _ in range(2)]
        assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["one", "two"]
        assert len((await served.trajectory(session))["calls"]) == 2


async def test_an_idempotency_key_gives_the_same_answer_as_often_as_it_is_asked() -> None:
    async with serving(says(ONE)) as served:
        session = await served.open()
        answers = [(await post(session, **{"Idempotency-Key": "k"})).json() for _ in range(3)]
        assert answers == [answers[0]] * 3
        assert len((await served.trajectory(session))["calls"]) == 1


async def test_an_idempotency_key_with_another_body_is_a_409_that_no_sdk_retries() -> None:
    async with serving(says(ONE)) as served:
        session = await served.open()
        await post(session, **{"Idempotency-Key": "k"})
        response = await post(session, "other", **{"Idempotency-Key": "k"})
        assert (response.status_code, response.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert response.headers["x-should-retry"] == "false"
        assert len((await served.trajectory(session))["calls"]) == 1


async def test_keys_and_retries_of_one_session_say_nothing_in_another() -> None:
    async with serving(says(ONE, TWO)) as served:
        first, second = await served.open(), await served.open()
        headers = {"Idempotency-Key": "k", "x-stainless-retry-count": "1"}
        texts = [(await post(s, **headers)).json()["choices"][0]["message"]["content"] for s in (first, second)]
        assert texts == ["one", "two"]


async def test_a_retry_that_arrives_while_the_first_is_answered_waits_for_its_answer() -> None:
    async with serving(says(ONE)) as served:
        session = await served.open()
        served.engine.hold()
        first = asyncio.create_task(post(session))
        await served.engine.until(lambda: bool(served.engine.requests))
        second = asyncio.create_task(post(session, **{"x-stainless-retry-count": "1"}))
        attempts = served.server.gateway.sessions.get(session.id).attempts
        await eventually(lambda: len(attempts._known) == 2)
        served.engine.release()
        assert (await first).json() == (await second).json()
        assert len(served.engine.requests) == 1


@pytest.mark.parametrize("count", ["-1", "x", "", "²", "9" * 5000])
async def test_a_retry_count_that_is_no_number_is_no_retry(count: str) -> None:
    async with serving(always(ONE)) as served:
        session = await served.open()
        headers = {"x-stainless-retry-count": count.encode("latin-1", "ignore")}
        for _ in range(2):
            assert (await post(session, **headers)).status_code == 200  # type: ignore[arg-type]
        assert len((await served.trajectory(session))["calls"]) == 2
