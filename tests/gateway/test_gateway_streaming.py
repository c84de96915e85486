"""Streamed chat completions: tokens as they are sampled, and in sum what the answer without streaming says."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_builders import END, WEATHER, always, ids, letters, says, serving, user
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
    streamed,
    text_of,
)

from agentrl.engine.scripted import Reply, scripted_logprob
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
    folded_up = folded(chunks)
    for choice in whole["choices"]:
        choice.pop("token_ids", None)  # the SDK adds up what it knows
    whole.pop("prompt_token_ids", None)
    folded_up.pop("prompt_token_ids", None)
    if not body.get("stream_options"):
        whole.pop("usage")
        folded_up.pop("usage", None)
    assert folded_up == whole


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
                by_events = comparable(await events.get_final_completion())
        for found in (whole, by_events):
            found.pop("id")
            found.pop("created")
        assert by_events == whole
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
        assert whole["choices"][0]["message"]["reasoning_content"] == "hm"


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
    """Case 37, streamed."""
    async with serving(always([*ids(NOW), END])) as served:
        chunks = await streamed(await served.open(), tools=TOOLS)
        calls = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
        assert [(call.index, call.function.name, call.function.arguments) for call in calls if call.function] == [
            (0, "now", "{}")
        ]


@pytest.mark.parametrize("cut", [len(ids(CALL)) - 1, len(ids(CALL))], ids=["inside the call", "after the call"])
async def test_case_40_a_streamed_turn_cut_by_length_is_never_a_finished_call(cut: int) -> None:
    """Case 40, streamed."""
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
    """Case 43, streamed."""
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
    """Case 50. The turn before was cut there, and its answer is asked to go on."""
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


OTHER_END = ids("<|endoftext|>")[0]


@pytest.mark.parametrize(
    ("sampled", "finish_reason"),
    [([*ids("a"), OTHER_END], "stop"), ([*ids("a"), END], "length")],
    ids=["ended by another token than EOS", "cut where EOS happens to be last"],
)
async def test_case_45_whether_a_turn_was_cut_is_what_the_engine_says_and_not_its_last_token(
    sampled: list[int], finish_reason: Any
) -> None:
    """Case 45."""
    async with serving(always(Reply(token_ids=sampled, finish_reason=finish_reason))) as served:
        session = await served.open()
        answer = await session.chat(QUESTION)
        chunks = await streamed(session)
        assert answer["choices"][0]["finish_reason"] == chunks[-1].choices[0].finish_reason == finish_reason
        trajectory = await served.trajectory(session)
        assert [call["finish_reason"] for call in trajectory["calls"]] == [finish_reason] * 2
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == [2, 2]


@pytest.mark.parametrize("sampled", [[], [END]], ids=["nothing", "the end token"])
async def test_case_48_a_streamed_answer_without_text_is_an_empty_message(sampled: list[int]) -> None:
    async with serving(always(sampled)) as served:
        session = await served.open()
        [choice] = folded(await streamed(session, logprobs=True))["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
        assert len(choice["logprobs"]["content"]) == len(sampled)
        trajectory = await served.trajectory(session)
        assert [sum(row["loss_mask"]) for row in trajectory["rows"]] == ([1] if sampled else [])
