"""Chat streams while they last: tokens as they are sampled, refusals and failures, clients that leave, silence."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from gateway_builders import END, WEATHER, always, eventually, ids, letters, says, serving, user
from openai.types.chat import ChatCompletionChunk
from openai_builders import CALL, folded, sdk_of, streamed, text_of

from agentrl.engine.scripted import Fault
from agentrl.gateway import model_calls

QUESTION: list[Any] = [user("q")]
TOOLS: Any = [WEATHER]


async def read(stream: AsyncIterator[ChatCompletionChunk], seen: list[ChatCompletionChunk]) -> None:
    async for chunk in stream:
        seen.append(chunk)


async def test_a_client_has_the_tokens_so_far_while_the_engine_still_samples() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        served.engine.allow(3)
        session = await served.open()
        async with sdk_of(session) as sdk:
            stream = await sdk.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            seen = ""
            while seen != "hel":
                seen += (await anext(stream)).choices[0].delta.content or ""
            [request] = served.engine.requests
            assert request.token_ids == letters("hel")
            served.engine.release()
            rest = [chunk async for chunk in stream]
        assert text_of(rest) == "lo"


async def test_a_refusal_before_the_first_token_has_its_status() -> None:
    async with serving(always([END])) as served:
        served.engine.fail_next(*[Fault(kind="die")] * 3)
        with pytest.raises(openai.InternalServerError) as caught:
            await streamed(await served.open())
        assert (caught.value.status_code, caught.value.code) == (503, "engine_lost")


async def test_a_limit_that_is_reached_before_a_stream_begins_is_a_400() -> None:
    async with serving(always([END])) as served:
        session = await served.open(limits={"max_calls": 1})
        await streamed(session)
        with pytest.raises(openai.BadRequestError) as caught:
            await streamed(session)
        assert caught.value.code == "session_limit_reached"


async def test_a_failure_after_the_first_token_is_an_event_that_the_sdk_raises() -> None:
    """And nothing of such an answer is trained."""
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.fail_next(Fault(kind="die", after=2), *[Fault(kind="die")] * 3)
        session = await served.open()
        async with sdk_of(session) as sdk:
            stream = await sdk.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            seen: list[ChatCompletionChunk] = []
            with pytest.raises(openai.APIError) as caught:
                await read(stream, seen)
        assert text_of(seen) == "he"
        assert caught.value.code == "engine_lost"
        trajectory = await served.trajectory(session)
        assert (trajectory["rows"], trajectory["dropped"]) == ([], {"engine_lost": 2})


async def test_a_session_that_is_finished_in_the_middle_of_a_stream_ends_it_with_an_error() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        served.engine.allow(2)
        session = await served.open()
        async with sdk_of(session) as sdk:
            stream = await sdk.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            while not (await anext(stream)).choices[0].delta.content:
                pass
            await served.finish(session)
            with pytest.raises(openai.APIError) as caught:
                await read(stream, [])
        assert caught.value.code == "session_sealed"
        assert (await served.trajectory(session))["dropped"] == {"aborted": 2}


async def test_a_client_that_leaves_in_the_middle_ends_its_engine_request_and_its_tokens_are_counted() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        served.engine.allow(2)
        session = await served.open()
        async with sdk_of(session) as sdk:
            stream = await sdk.chat.completions.create(model="policy", messages=QUESTION, stream=True)
            while not (await anext(stream)).choices[0].delta.content:
                pass
            await stream.close()
        await served.engine.until(lambda: served.engine.requests[0].aborted)
        live = served.server.gateway.sessions.get(session.id)
        await eventually(lambda: live.in_flight == 0)
        trajectory = await served.trajectory(session)
        assert (trajectory["rows"], trajectory["dropped"]) == ([], {"aborted": 2})


async def test_a_stream_says_something_while_no_token_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies and clients give up on silence; the SDK passes over comments."""
    monkeypatch.setattr(model_calls, "FIRST_EVENT_S", 0.01)
    monkeypatch.setattr(model_calls, "KEEP_ALIVE_S", 0.01)
    async with serving(always([*letters("hello"), END])) as served:
        served.engine.hold()
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"messages": QUESTION, "stream": True}
        url = f"{session.base_url}/chat/completions"
        async with served.http.stream("POST", url, json=body, headers=headers) as response:
            lines = response.aiter_lines()
            async for line in lines:
                if line == ": keep-alive":
                    break
            served.engine.release()
            rest = [line async for line in lines if line.startswith("data: ")]
        *chunks, done = [line.removeprefix("data: ") for line in rest]
        assert done == "[DONE]"
        assert text_of([ChatCompletionChunk.model_validate_json(chunk) for chunk in chunks]) == "hello"


async def test_a_stream_says_something_while_all_that_comes_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long call is given whole; until then its text is held. Here 20 seconds lie between two of its tokens."""
    clock = count(step=20)
    hours = SimpleNamespace(monotonic=lambda: next(clock), time=time.time, perf_counter=time.perf_counter)
    monkeypatch.setattr(model_calls, "time", hours)
    async with serving(always([*ids(CALL), END])) as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"messages": QUESTION, "stream": True, "tools": TOOLS}
        response = await served.http.post(f"{session.base_url}/chat/completions", json=body, headers=headers)
        before = response.text.partition('"tool_calls"')[0]
        assert ": keep-alive\n\n" in before


async def test_a_streamed_episode_is_one_row() -> None:
    async with serving(says([*ids(CALL), END], [*letters("rain"), END])) as served:
        session = await served.open()
        messages = list(QUESTION)
        async with sdk_of(session) as sdk:
            for _ in range(2):
                async with sdk.chat.completions.stream(model="policy", messages=messages, tools=TOOLS) as events:
                    message = (await events.get_final_completion()).choices[0].message
                messages += [message, {"role": "tool", "tool_call_id": "c", "content": "wet"}]
        [row] = (await served.trajectory(session))["rows"]
        first, second = served.engine.prompts
        assert row["token_ids"] == [*second, *letters("rain"), END]
        assert second[: len(first) + len(ids(CALL)) + 1] == [*first, *ids(CALL), END]


@pytest.mark.parametrize(
    "asked", [{}, {"logprobs": True, "response_format": {"type": "json_object"}}], ids=["trained", "not trained"]
)
async def test_a_stream_that_is_sent_again_after_its_connection_broke_is_the_recorded_answer(asked: Any) -> None:
    async with serving(always([*letters("{}"), END])) as served:
        session = await served.open()
        first = await streamed(session, extra_headers={"Idempotency-Key": "k"}, **asked)
        again = await streamed(session, extra_headers={"Idempotency-Key": "k"}, **asked)
        assert folded(again) == folded(first)
        assert bool(folded(first)["choices"][0]["logprobs"]) is bool(asked)
        assert len(served.engine.requests) == 1
