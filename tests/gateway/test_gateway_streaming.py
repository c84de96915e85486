"""Streamed chat completions: tokens as they are sampled, and in sum what the answer without streaming says."""

from __future__ import annotations

import time
from itertools import count
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from gateway_builders import END, WEATHER, Opened, always, eventually, ids, letters, says, serving, user
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai_builders import (
    CALL,
    NOW,
    RESPONDING,
    Sampled,
    comparable,
    events_of,
    folded,
    generated,
    samples,
    sdk_of,
    stream_of,
)

from agentrl.engine.scripted import Fault, Reply, scripted_logprob
from agentrl.gateway import model_calls
from agentrl.gateway.dialects.chat import CHAT

QUESTION: list[Any] = [user("q")]
TOOLS: Any = [WEATHER]
OPTIONS = st.fixed_dictionaries(
    {"messages": st.just(QUESTION)},
    optional={
        "tools": st.just(TOOLS),
        "stop": st.sampled_from(["stop", "hello", "é"]),
        "logprobs": st.just(True),
        "return_token_ids": st.just(True),
        "parallel_tool_calls": st.just(False),
        "stream_options": st.just({"include_usage": True}),
    },
)
CUTS = st.sets(st.integers(1, 80))


# In sum the same


@given(samples(), OPTIONS, CUTS)
def test_a_stream_folds_to_the_answer_without_streaming(sampled: Sampled, body: dict[str, Any], cuts: set[int]) -> None:
    answer, asked, pieces = generated(CHAT, body, sampled, cuts)
    chunks = [ChatCompletionChunk.model_validate(event) for event in events_of(stream_of(CHAT, answer, asked, pieces))]
    other, _, _ = generated(CHAT, body, sampled, None)
    whole = comparable(ChatCompletion.model_validate_json(CHAT.encode([other], asked, RESPONDING)))
    streamed = folded(chunks)
    for choice in whole["choices"]:
        choice.pop("token_ids", None)  # the SDK adds up what it knows
    whole.pop("prompt_token_ids", None), streamed.pop("prompt_token_ids", None)
    if not body.get("stream_options"):
        whole.pop("usage")
        streamed.pop("usage", None)
    assert streamed == whole


@given(samples(), OPTIONS, CUTS)
def test_case_41_joined_ids_are_the_stored_ids_and_each_has_its_logprob(
    sampled: Sampled, body: dict[str, Any], cuts: set[int]
) -> None:
    answer, asked, pieces = generated(CHAT, {**body, "logprobs": True, "return_token_ids": True}, sampled, cuts)
    choices = [choice for event in events_of(stream_of(CHAT, answer, asked, pieces)) for choice in event["choices"]]
    joined = [token_id for choice in choices for token_id in choice.get("token_ids", [])]
    entries = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert joined == answer.call.token_ids
    assert [entry["logprob"] for entry in entries] == [scripted_logprob(token_id, 0) for token_id in joined]


@pytest.mark.parametrize("interval", [1, 3, 100])
async def test_the_sdk_gets_the_same_of_one_sample_streamed_and_whole(interval: int) -> None:
    turn = [*ids("<think>hm</think>"), *letters("I look: é🔥"), *ids(f"{CALL}\n{NOW}"), END]
    async with serving(always(turn)) as served:
        served.engine.stream_interval = interval
        session = await served.open()
        async with sdk_of(session) as sdk:
            asked: Any = {"model": "policy", "messages": QUESTION, "tools": TOOLS, "logprobs": True, "top_logprobs": 2}
            whole = comparable(await sdk.chat.completions.create(**asked))
            async with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
                async for _ in events:
                    pass
                streamed = comparable(await events.get_final_completion())
        for found in (whole, streamed):
            found.pop("id")
            found.pop("created")
        assert streamed == whole
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
        assert whole["choices"][0]["message"]["reasoning_content"] == "hm"


async def streamed(session: Opened, **body: Any) -> list[ChatCompletionChunk]:
    """All chunks of the SDK's plain stream."""
    async with sdk_of(session) as sdk:
        chunks = await sdk.chat.completions.create(model="policy", stream=True, **{"messages": QUESTION, **body})
        return [chunk async for chunk in chunks]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_case_41_the_usage_comes_last_with_an_empty_choices_list_and_counts_the_ids() -> None:
    async with serving(always([*ids(CALL), END])) as served:
        session = await served.open()
        extra: Any = {"return_token_ids": True}
        options: Any = {"include_usage": True}
        *chunks, last = await streamed(session, tools=TOOLS, logprobs=True, stream_options=options, extra_body=extra)
        assert last.choices == []
        assert all(chunk.usage is None for chunk in chunks)
        [call] = (await served.trajectory(session))["calls"]
        joined = [token for chunk in chunks for choice in chunk.choices for token in getattr(choice, "token_ids", [])]
        assert joined == call["token_ids"] == [*ids(CALL), END]
        assert last.usage is not None
        assert (last.usage.completion_tokens, last.usage.prompt_tokens) == (len(joined), len(call["prompt_token_ids"]))
        assert getattr(chunks[0], "prompt_token_ids", None) == call["prompt_token_ids"]


# The cases


async def test_case_37_a_streamed_call_without_arguments_has_an_empty_object() -> None:
    async with serving(always([*ids(NOW), END])) as served:
        chunks = await streamed(await served.open(), tools=TOOLS)
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
        assert [(call.index, call.function.name, call.function.arguments) for call in calls if call.function] == [
            (0, "now", "{}")
        ]


@pytest.mark.parametrize("cut", [len(ids(CALL)) - 1, len(ids(CALL))], ids=["inside the call", "after the call"])
async def test_case_40_a_streamed_turn_cut_by_length_is_never_a_finished_call(cut: int) -> None:
    async with serving(always([*ids(CALL), *ids(" more"), END])) as served:
        session = await served.open()
        chunks = await streamed(session, tools=TOOLS, max_tokens=cut)
        assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
        calls = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or []]
        assert bool(calls) is (cut == len(ids(CALL)))
        assert text_of(chunks) == ("" if calls else CALL.removesuffix("</tool_call>"))
        [call] = (await served.trajectory(session))["calls"]
        assert (call["token_ids"], call["finish_reason"]) == (ids(CALL)[:cut], "length")


async def test_case_43_streamed_text_never_shows_the_stop_string_and_the_ids_end_where_it_was_complete() -> None:
    sample, beyond = ids("<answer>4</answer>"), ids(" and")
    async with serving(always(Reply(token_ids=[*sample, *beyond]))) as served:
        served.engine.stream_interval = 100
        session = await served.open()
        chunks = await streamed(session, stop="</answer>", extra_body={"return_token_ids": True})
        assert text_of(chunks) == "<answer>4"
        joined = [token for chunk in chunks for token in getattr(chunk.choices[0], "token_ids", [])]
        trajectory = await served.trajectory(session)
        assert joined == trajectory["calls"][0]["token_ids"] == sample
        assert trajectory["dropped"] == {"past_stop": len(beyond)}


async def test_case_50_a_prompt_that_ends_inside_a_character_never_shows_in_the_stream() -> None:
    """The turn before was cut there, and its answer is asked to go on."""
    fire = letters("🔥")
    async with serving(says(Reply(token_ids=fire[:2], finish_reason="length"), [*fire[2:], *ids("hi"), END])) as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        prompt = ids("hello world ")
        for given_ids in (prompt, [*prompt, *fire[:2]]):
            body = {"prompt": given_ids, "stream": True}
            response = await served.http.post(f"{session.base_url}/completions", json=body, headers=headers)
        text = "".join(choice["text"] for event in events_of(response.content) for choice in event["choices"])
        assert "hello" not in text
        assert text.endswith("hi")
        [row] = (await served.trajectory(session))["rows"]
        assert row["token_ids"] == [*prompt, *fire, *ids("hi"), END]


async def test_case_51_an_emoji_over_four_chunks_is_streamed_whole_and_a_cut_one_not_at_all() -> None:
    fire = letters("🔥")
    async with serving(says([*fire, END], Reply(token_ids=[*ids("a"), *fire[:2]], finish_reason="length"))) as served:
        session = await served.open()
        chunks = await streamed(session, logprobs=True)
        assert [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content] == ["🔥"]
        tokens = [e.token for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content or []]
        assert tokens == [*(f"bytes:\\x{byte:02x}" for byte in "🔥".encode()), "<|im_end|>"]
        assert text_of(await streamed(session)) == "a"


# While it is sampled


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
            seen = []
            with pytest.raises(openai.APIError) as caught:
                async for chunk in stream:
                    seen.append(chunk)  # noqa: PERF401
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
                async for _ in stream:
                    pass
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


async def test_a_stream_that_is_sent_again_after_its_connection_broke_is_the_recorded_answer() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        session = await served.open()
        first = await streamed(session, extra_headers={"Idempotency-Key": "k"})
        again = await streamed(session, extra_headers={"Idempotency-Key": "k"})
        assert folded(again) == folded(first)
        assert len(served.engine.requests) == 1
