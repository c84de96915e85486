"""Completions: prompts that the client wrote itself, as text or ids; answers, whole and streamed, by the openai SDK."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_builders import (
    CHATML,
    END,
    WITH_BOS,
    Opened,
    always,
    ids,
    letters,
    says,
    serving,
    transformers_tokenizer,
    user,
)
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types import Completion
from openai_builders import RESPONDING, Sampled, events_of, generated, samples, sdk_of, stream_of

from agentrl.engine.scripted import Reply, scripted_logprob
from agentrl.gateway.dialects.completions import COMPLETIONS

BOS = ids("<s>")
OPTIONS = st.fixed_dictionaries(
    {"prompt": st.just("hello")},
    optional={
        "stop": st.sampled_from(["stop", "hello", "é"]),
        "logprobs": st.integers(0, 2),
        "return_token_ids": st.just(True),
        "stream_options": st.just({"include_usage": True}),
        "stop_token_ids": st.just([END]),
    },
)


async def complete(session: Opened, **body: Any) -> Completion:
    async with sdk_of(session) as sdk:
        found: Completion = await sdk.completions.create(model="policy", **body)
    return found


async def chunks_of(session: Opened, **body: Any) -> list[Completion]:
    async with sdk_of(session) as sdk:
        return [chunk async for chunk in await sdk.completions.create(model="policy", stream=True, **body)]


def rendered(messages: list[dict[str, Any]], template: str) -> str:
    """What an agent writes that renders the chat template itself."""
    tokenizer = transformers_tokenizer(template)
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def folded(chunks: list[Completion]) -> dict[int, dict[str, Any]]:
    """Each choice that the chunks add up to."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            so_far = found.setdefault(choice.index, {"text": "", "token_ids": []})
            so_far["text"] += choice.text
            so_far["token_ids"] += getattr(choice, "token_ids", None) or []
            for name, values in (choice.logprobs.to_dict() if choice.logprobs else {}).items():
                if values is not None:
                    so_far[name] = [*so_far.get(name, []), *values]
            if choice.finish_reason is not None:
                so_far |= {"finish_reason": choice.finish_reason, "stop_reason": getattr(choice, "stop_reason", None)}
    return found


# Prompts


@pytest.mark.parametrize("template", [CHATML, WITH_BOS])
async def test_case_5_messages_text_and_ids_of_one_chat_are_the_same_prompt(template: str) -> None:
    """Case 5. With BOS exactly as often as the template writes it."""
    messages = [user("hello"), {"role": "assistant", "content": "hi é"}, user("why?")]
    text = rendered(messages, template)
    async with serving(always([END]), template=template) as served:
        await (await served.open()).chat(messages)
        [by_messages] = served.engine.prompts
        await complete(await served.open(), prompt=text)
        await complete(await served.open(), prompt=by_messages)
        session = await served.open()
        body = {"token_ids": by_messages, "sampling_params": {}}
        url = f"{served.server.url}/inference/v1/generate"
        answer = await served.http.post(url, json=body, headers={"Authorization": f"Bearer {session.api_key}"})
        assert answer.status_code == 200, answer.text
        assert served.engine.prompts == [by_messages] * 4
        assert by_messages.count(BOS[0]) == (1 if template is WITH_BOS else 0)


async def test_control_tokens_in_a_prompt_are_the_clients_own() -> None:
    async with serving(always([END])) as served:
        await complete(await served.open(), prompt="<|im_start|>user\nhi<|im_end|>")
        [prompt] = served.engine.prompts
        assert prompt == ids("<|im_start|>user\nhi<|im_end|>")
        assert END in prompt


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("template", [CHATML, WITH_BOS])
async def test_a_text_episode_continues_the_recorded_ids(template: str, streaming: bool) -> None:
    """The agent renders the template itself. `hello` is one token to the tokenizer and was sampled as five (case 1)."""
    words = ["hello", "hello again", "done"]
    turns = [[*letters(word), END] for word in words]
    async with serving(says(*turns), template=template) as served:
        session = await served.open()
        messages = [user("q")]
        for word in words:
            prompt = rendered(messages, template)
            if streaming:
                text = "".join(c.choices[0].text for c in await chunks_of(session, prompt=prompt))
            else:
                text = (await complete(session, prompt=prompt)).choices[0].text
            assert text == word
            messages += [{"role": "assistant", "content": text}, user("é")]
        [row] = (await served.trajectory(session))["rows"]
        assert row["token_ids"] == [*served.engine.prompts[-1], *turns[-1]]
        trained = [token_id for token_id, mask in zip(row["token_ids"], row["loss_mask"], strict=True) if mask]
        assert trained == [token_id for turn in turns for token_id in turn]


async def test_a_prompt_of_ids_that_extends_an_earlier_call_is_its_child() -> None:
    async with serving(says([*letters("hello"), END], [END])) as served:
        session = await served.open()
        await complete(session, prompt=ids("q"))
        await complete(session, prompt=[*ids("q"), *letters("hello"), END, *ids("r")])
        trajectory = await served.trajectory(session)
        assert [call["parent"] for call in trajectory["calls"]] == [None, 0]
        assert len(trajectory["rows"]) == 1


async def test_a_text_that_leaves_the_recorded_one_is_encoded_anew() -> None:
    async with serving(says(letters("hello"), [END])) as served:
        session = await served.open()
        await complete(session, prompt="q")
        await complete(session, prompt="qhell no")
        assert served.engine.prompts[1] == ids("qhell no")
        assert [call["parent"] for call in (await served.trajectory(session))["calls"]] == [None, None]


async def test_several_prompts_are_answered_in_their_order_n_times_each() -> None:
    def script(prompt_ids: list[int], sampling: Any, version: int) -> list[int]:
        return [*prompt_ids, END]

    async with serving(script) as served:
        session = await served.open()
        for streaming in (False, True):
            prompts = ["one", "two", "three"]
            if streaming:
                texts = [c["text"] for _, c in sorted(folded(await chunks_of(session, prompt=prompts, n=2)).items())]
            else:
                texts = [choice.text for choice in (await complete(session, prompt=prompts, n=2)).choices]
            assert texts == ["one", "one", "two", "two", "three", "three"]
        usage = (await complete(session, prompt=[ids("one"), ids("two")], n=2)).usage
        assert usage is not None
        assert usage.prompt_tokens == len(ids("one")) + len(ids("two"))
        assert usage.completion_tokens == 2 * (usage.prompt_tokens + 2)


# Answers


async def test_echo_puts_the_prompt_before_the_text() -> None:
    async with serving(always([*ids(" world"), END])) as served:
        answer = await complete(await served.open(), prompt="<s>hello", echo=True)
        assert answer.choices[0].text == "<s>hello world"


async def test_logprobs_stand_beside_every_token_and_offsets_point_into_the_text() -> None:
    """A part of a character has its bytes for a name and begins where the character does (case 51)."""
    sampled = [*letters("aé!"), END]
    async with serving(always(sampled)) as served:
        choice = (await complete(await served.open(), prompt="q", logprobs=1)).choices[0]
        assert choice.logprobs is not None
        assert choice.text == "aé!"
        assert choice.logprobs.tokens == ["a", "bytes:\\xc3", "bytes:\\xa9", "!", "<|im_end|>"]
        assert choice.logprobs.text_offset == [0, 1, 1, 2, 3]
        assert choice.logprobs.token_logprobs == [scripted_logprob(token_id, 0) for token_id in sampled]


async def test_a_stop_string_ends_the_text_and_is_named() -> None:
    async with serving(always(Reply(token_ids=letters("4</a>"), stop_reason="</a>"))) as served:
        choice = (await complete(await served.open(), prompt="q", stop=["</a>"])).choices[0]
        assert (choice.text, choice.finish_reason, getattr(choice, "stop_reason", None)) == ("4", "stop", "</a>")


async def test_a_stop_token_of_the_request_is_named_by_its_id() -> None:
    [stop] = ids("hello")
    async with serving(always([*ids("a"), stop])) as served:
        extra = {"stop_token_ids": [stop]}
        choice = (await complete(await served.open(), prompt="q", extra_body=extra)).choices[0]
        assert getattr(choice, "stop_reason", None) == stop
        assert served.engine.requests[0].sampling_params["stop_token_ids"] == [stop]


@given(samples(), OPTIONS, st.sets(st.integers(1, 80)))
@example(([], "stop"), {"prompt": "hello", "logprobs": 1}, set())
def test_a_stream_adds_up_to_the_answer_without_streaming(
    sampled: Sampled, body: dict[str, Any], cuts: set[int]
) -> None:
    answer, asked, pieces = generated(COMPLETIONS, body, sampled, cuts)
    other, _, _ = generated(COMPLETIONS, body, sampled, None)
    events = events_of(stream_of(COMPLETIONS, answer, asked, pieces))
    whole = Completion.model_validate_json(COMPLETIONS.encode([other], asked, RESPONDING))
    chunks = [Completion.construct(**event) for event in events]
    assert folded(chunks) == folded([whole])
    if body.get("stream_options"):
        assert chunks[-1].usage == whole.usage


async def test_the_ids_of_a_streamed_answer_are_the_stored_ones() -> None:
    async with serving(always([*letters("hello é"), END])) as served:
        session = await served.open()
        extra = {"return_token_ids": True}
        options: Any = {"include_usage": True}
        chunks = await chunks_of(session, prompt="q", logprobs=0, stream_options=options, extra_body=extra)
        [call] = (await served.trajectory(session))["calls"]
        found = folded(chunks)[0]
        assert found["token_ids"] == call["token_ids"]
        assert found["token_logprobs"] == call["logprobs"]
        assert (chunks[-1].choices, chunks[-2].usage) == ([], None)


# Refusals


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("suffix", "x"),
        ("best_of", 3),
        ("logit_bias", {"5": 1}),
        ("prompt", []),
        ("prompt", ""),
        ("prompt", [1, -1]),
        ("prompt", ["a"] * 129),
        ("logprobs", 21),
        ("n", 0),
        ("functions", []),
    ],
)
async def test_what_is_not_supported_is_a_400_that_names_the_field(field: str, value: Any) -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"prompt": "q", field: value}
        response = await served.http.post(f"{session.base_url}/completions", json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, field)
        assert served.engine.requests == []


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True, "stream": True}, "echo"),
        ({"prompt": [5, "a"]}, "prompt[0]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
    ],
)
async def test_what_does_not_go_together_is_a_400(body: dict[str, Any], named: str) -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"prompt": "q", **body}
        response = await served.http.post(f"{session.base_url}/completions", json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, named)
