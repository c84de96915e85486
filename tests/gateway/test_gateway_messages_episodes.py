"""The Anthropic SDK, unmodified, against the served gateway: tool episodes, streaming and not, and its exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import anthropic
import pytest
from gateway_builders import END, Opened, Served, always, ids, letters, says, serving
from messages_builders import WEATHER, client

from agentrl.engine.scripted import Reply

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "weather", "arguments": [1, 2]}\n</tool_call>'
QUESTION = {"role": "user", "content": "weather in Paris?"}
ASKED: dict[str, Any] = {"model": "policy", "max_tokens": 256, "messages": [QUESTION]}


async def answered(sdk: anthropic.AsyncAnthropic, stream: bool, messages: Sequence[Any], **fields: Any) -> Any:
    asked = {"model": "policy", "max_tokens": 256, "messages": list(messages), "tools": [WEATHER], **fields}
    if not stream:
        return await sdk.messages.create(**asked)
    async with sdk.messages.stream(**asked) as events:
        return await events.get_final_message()


def results(*found: tuple[str, str]) -> dict[str, Any]:
    blocks = [{"type": "tool_result", "tool_use_id": call_id, "content": content} for call_id, content in found]
    return {"role": "user", "content": blocks}


async def the_only_row(served: Served, session: Opened) -> dict[str, Any]:
    [row] = (await served.trajectory(session))["rows"]
    return dict(row)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_episode_with_parallel_calls_is_one_row_of_what_the_engine_saw(stream: bool) -> None:
    turns = [[*ids(f"let me see\n{CALL}\n{CALL}"), END], [*letters("rain"), END]]
    async with serving(says(*turns)) as served:
        session = await served.open()
        async with client(session) as sdk:
            first = await answered(sdk, stream, [QUESTION])
            text, one, two = first.content
            echo = {"role": "assistant", "content": first.content}
            second = await answered(sdk, stream, [QUESTION, echo, results((one.id, "rain"), (two.id, "wind"))])
        assert (first.stop_reason, text.text) == ("tool_use", "let me see")
        assert (one.name, one.input, two.input) == ("weather", {"city": "Paris"}, {"city": "Paris"})
        assert (second.stop_reason, [block.text for block in second.content]) == ("end_turn", ["rain"])
        before, prompt = served.engine.prompts
        assert prompt[: len(before) + len(turns[0])] == [*before, *turns[0]]
        row = await the_only_row(served, session)
        assert row["token_ids"] == [*prompt, *turns[1]]
        assert sum(row["loss_mask"]) == len(turns[0]) + len(turns[1])
        assert (second.usage.input_tokens, second.usage.output_tokens) == (len(prompt), len(turns[1]))


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_and_calls_without_an_object_are_found_again_when_they_come_back(stream: bool) -> None:
    turns = [[*ids(f"<think>\nhm\n</think>\n\n{OTHER}"), END], [*letters("ok"), END]]
    async with serving(says(*turns)) as served:
        session = await served.open()
        async with client(session) as sdk:
            first = await answered(sdk, stream, [QUESTION])
            echo = {"role": "assistant", "content": first.content}
            use = first.content[-1]
            await answered(sdk, stream, [QUESTION, echo, results((use.id, "rain"))])
        assert [block.type for block in first.content] == ["thinking", "tool_use"]
        assert first.content[0].thinking == "hm"
        assert first.usage.output_tokens_details.thinking_tokens > 0
        await the_only_row(served, session)


async def test_the_sdks_own_tool_loop_runs_against_it() -> None:
    @anthropic.beta_async_tool
    async def weather(city: str) -> str:
        """Of a city."""
        return f"rain in {city}"

    turns = [[*ids(CALL), END], [*ids(CALL), END], [*letters("rain"), END]]
    async with serving(says(*turns)) as served:
        session = await served.open()
        async with client(session) as sdk:
            runner = sdk.beta.messages.tool_runner(**ASKED, tools=[weather])
            last = await runner.until_done()
        assert [block.text for block in last.content if block.type == "text"] == ["rain"]
        row = await the_only_row(served, session)
        assert row["token_ids"] == [*served.engine.prompts[2], *turns[2]]
        assert sum(row["loss_mask"]) == sum(map(len, turns))


async def test_a_coding_agents_requests_with_all_their_trimmings_stay_one_conversation() -> None:
    """Each request marks other blocks for caching, accounts in its system prompt and adds system messages."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    turns = [[*ids(CALL), END], [*ids(CALL), END], [*letters("rain"), END]]
    async with serving(says(*turns)) as served:
        session = await served.open()
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "weather?"}]}]
        async with client(session) as sdk:
            for turn in range(3):
                system: list[Any] = [
                    {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={turn}abc;"},
                    {"type": "text", "text": "You are an agent.", **mark},
                    {"type": "text", "text": "Be kind."},
                ]
                last = messages[-1]["content"][-1]
                last.update(mark)
                async with sdk.beta.messages.stream(
                    model="claude",
                    max_tokens=256,
                    system=system,
                    messages=messages,
                    tools=[{**WEATHER, **(mark if turn else {})}],  # type: ignore[list-item]
                    thinking={"type": "adaptive"},
                    metadata={"user_id": f"user_{turn}"},
                    context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
                    betas=["context-management-2025-06-27"],
                ) as events:
                    answer = await events.get_final_message()
                del last["cache_control"]
                messages.append({"role": "assistant", "content": answer.to_dict()["content"]})
                calls = [block.id for block in answer.content if block.type == "tool_use"]
                messages.append(results(*((call_id, "rain") for call_id in calls)))
                messages[-1]["content"].append({"type": "text", "text": f"{turn} done"})
                messages.append({"role": "system", "content": [{"type": "text", "text": f"{turn} tokens left"}]})
        row = await the_only_row(served, session)
        assert row["token_ids"] == [*served.engine.prompts[2], *turns[2]]
        assert sum(row["loss_mask"]) == sum(map(len, turns))


@pytest.mark.parametrize(
    "sample",
    [
        [*letters("plain é text"), END],
        [*ids(f"<think>hm</think>a\n{CALL}\n{CALL}"), END],
        [*ids(f"{CALL} and text after it"), END],
        Reply(token_ids=ids("up to here STOP"), stop_reason="STOP"),
        ids(CALL)[:-3],
        [END],
    ],
    ids=["text", "thinking and calls", "text after a call", "stop sequence", "cut off", "nothing"],
)
async def test_the_same_sample_says_the_same_streamed_and_whole(sample: Any) -> None:
    max_tokens = len(ids(CALL)) - 3 if sample == ids(CALL)[:-3] else 256
    async with serving(always(sample)) as served:
        said = []
        for stream in (False, True):
            async with client(await served.open()) as sdk:
                answer = await answered(sdk, stream, [QUESTION], stop_sequences=["STOP"], max_tokens=max_tokens)
            found = answer.to_dict()
            found.pop("id")
            for block in found["content"]:
                block.pop("id", None)  # of calls, random
            said.append(found)
        assert said[0] == said[1]


async def test_a_stop_sequence_is_named_and_no_part_of_the_text() -> None:
    async with serving(always(Reply(token_ids=ids("4</answer>"), stop_reason="</answer>"))) as served:
        async with client(await served.open()) as sdk:
            found = await sdk.messages.create(**ASKED, stop_sequences=["</answer>"])
        assert (found.stop_reason, found.stop_sequence) == ("stop_sequence", "</answer>")
        assert [block.text for block in found.content if block.type == "text"] == ["4"]


# Exceptions


async def test_an_unknown_key_is_an_authentication_error_and_anothers_session_a_permission_error() -> None:
    async with serving(always([END])) as served:
        session, other = await served.open(), await served.open()
        async with client(session, api_key="not-a-key") as sdk:
            with pytest.raises(anthropic.AuthenticationError) as unknown:
                await sdk.messages.create(**ASKED)
        async with client(session, api_key=other.api_key) as sdk:
            with pytest.raises(anthropic.PermissionDeniedError) as foreign:
                await sdk.messages.create(**ASKED)
        assert (unknown.value.type, foreign.value.type) == ("authentication_error", "permission_error")
        assert served.engine.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_field_that_is_not_supported_is_a_bad_request_that_names_it(stream: bool) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "u"}}
    async with serving(always([END])) as served:
        async with client(await served.open()) as sdk:
            with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type") as refused:
                await answered(sdk, stream, [{"role": "user", "content": [image]}])
        assert refused.value.type == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_finished_session_is_a_conflict(stream: bool) -> None:
    async with serving(always([*letters("ok"), END])) as served:
        session = await served.open()
        await served.finish(session)
        async with client(session) as sdk:
            with pytest.raises(anthropic.ConflictError) as refused:
                await answered(sdk, stream, [QUESTION])
        assert (refused.value.type, refused.value.error_code) == ("conflict_error", "session_sealed")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_does_not_fit_says_so_in_the_apis_words(stream: bool) -> None:
    async with serving(always([END]), max_model_len=16) as served, client(await served.open()) as sdk:
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await answered(sdk, stream, [QUESTION])


async def test_a_full_queue_is_a_rate_limit_error() -> None:
    async with serving(always([*letters("ok"), END]), max_in_flight_per_engine=1, max_waiting=1) as served:
        served.engine.hold()
        async with client(await served.open()) as sdk:
            calls = [asyncio.create_task(sdk.messages.create(**ASKED)) for _ in range(3)]
            done, waiting = await asyncio.wait(calls, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            [refused] = [call.exception() for call in done]
            served.engine.release()
            await asyncio.wait(waiting, timeout=10)
        assert isinstance(refused, anthropic.RateLimitError)
        assert refused.type == "rate_limit_error"
        assert int(refused.response.headers["retry-after"]) >= 1
        assert [call.exception() for call in waiting] == [None, None]
