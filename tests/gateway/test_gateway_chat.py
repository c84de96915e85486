"""Chat completions over HTTP: answers, finish reasons, limits of the context, and fields that are refused by name."""

from __future__ import annotations

import threading
from typing import Any

import openai
import pytest
from gateway_builders import CHATML, END, WEATHER, always, ids, letters, renderer, says, serving, user
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from agentrl.engine.scripted import Reply
from agentrl.gateway.render import Renderer

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'


async def test_the_openai_sdk_runs_a_tool_episode_and_the_rows_hold_what_the_engine_saw() -> None:
    async with serving(says([*ids(CALL), END], [*letters("rain"), END])) as served:
        session = await served.open()
        async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as sdk:
            messages: list[Any] = [user("weather in Paris?")]
            first = await sdk.chat.completions.create(model="policy", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
            [call] = first.choices[0].message.tool_calls or []
            messages += [first.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
            second = await sdk.chat.completions.create(model="policy", messages=messages, tools=[WEATHER])  # type: ignore[list-item]
        assert first.choices[0].finish_reason == "tool_calls"
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Paris"}')
        assert (second.choices[0].finish_reason, second.choices[0].message.content) == ("stop", "rain")
        trajectory = await served.trajectory(session)
        result = ids("\n<|im_start|>tool\nrain<|im_end|>\n<|im_start|>assistant\n")
        assert served.engine.prompts[1] == [*served.engine.prompts[0], *ids(CALL), END, *result]
        assert [row["token_ids"] for row in trajectory["rows"]] == [[*served.engine.prompts[1], *letters("rain"), END]]


async def test_usage_counts_the_ids_of_prompt_and_sample() -> None:
    async with serving(always([*letters("hello"), END])) as served:
        answer = await (await served.open()).chat([user("hi")])
        prompt = len(ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
        assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6}


@pytest.mark.parametrize("cut", [len(ids(CALL)) - 1, len(ids(CALL))], ids=["inside the call", "after the call"])
async def test_case_40_a_turn_cut_by_length_is_never_reported_as_a_finished_call(cut: int) -> None:
    """Case 40."""
    async with serving(always([*ids(CALL), *ids(" more"), END])) as served:
        session = await served.open()
        answer = await session.chat([user("q")], tools=[WEATHER], max_tokens=cut)
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "length"
        assert ("tool_calls" in choice["message"]) is (cut == len(ids(CALL)))
        [call] = (await served.trajectory(session))["calls"]
        assert (call["token_ids"], call["finish_reason"]) == (ids(CALL)[:cut], "length")


async def test_case_37_a_call_without_arguments_arrives_with_an_empty_object() -> None:
    """Case 37."""
    async with serving(always([*ids('<tool_call>{"name":"now","arguments":{}}</tool_call>'), END])) as served:
        answer = await (await served.open()).chat([user("q")], tools=[WEATHER])
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "now", "arguments": "{}"}


async def test_tool_choice_none_leaves_the_text_as_it_is() -> None:
    async with serving(always([*ids(CALL), END])) as served:
        answer = await (await served.open()).chat([user("q")], tools=[WEATHER], tool_choice="none")
        choice = answer["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)


async def test_case_43_text_is_trimmed_at_the_stop_string_and_the_ids_are_not() -> None:
    """Case 43. An engine that runs past the stop is cut at the token that completed it; what is beyond is counted."""
    sample, beyond = ids("<answer>4</answer>"), ids(" and")
    async with serving(says(Reply(token_ids=[*sample, *beyond]), [*ids("ok"), END])) as served:
        served.engine.stream_interval = 100  # so that they come with it
        session = await served.open()
        answer = await session.chat([user("q")], stop="</answer>")
        assert answer["choices"][0]["message"]["content"] == "<answer>4"
        assert served.engine.requests[0].sampling_params["stop"] == ["</answer>"]
        await session.chat([user("q"), answer["choices"][0]["message"], user("r")])
        first, second = served.engine.prompts
        assert second[: len(first) + len(sample) + 1] == [*first, *sample, END]  # the end marker is context
        assert (await served.trajectory(session))["dropped"] == {"past_stop": len(beyond)}


async def test_a_token_that_completes_the_stop_string_and_goes_past_it_is_kept_whole() -> None:
    """Case 43: a BPE in which `</`, `answer` and `>.` are tokens. The text ends before the stop, and is only read."""
    merges = [("<", "/"), (">", "."), *(("answer"[:n], "answer"[n]) for n in range(1, 6))]
    vocab = {symbol: at for at, symbol in enumerate(sorted(ByteLevel.alphabet()))}
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    merging = Tokenizer(BPE(vocab=vocab, merges=merges))
    merging.pre_tokenizer, merging.decoder = ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    merging.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    end = merging.token_to_id("<|im_end|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=merging, eos_token="<|im_end|>", chat_template=CHATML)
    sample = merging.encode("4</answer>.").ids
    assert [merging.id_to_token(i) for i in sample] == ["4", "</", "answer", ">."]
    async with serving(says(Reply(token_ids=sample), [end]), renders=Renderer(tokenizer)) as served:
        session = await served.open()
        message = (await session.chat([user("q")], stop="</answer>"))["choices"][0]["message"]
        assert message["content"] == "4"
        await session.chat([user("q"), message, user("r")])
        first, second = served.engine.prompts
        assert second[: len(first) + 5] == [*first, *sample, end]
        [call, _] = (await served.trajectory(session))["calls"]
        assert (call["token_ids"], len(call["logprobs"])) == (sample, 4)


async def test_logprobs_stand_beside_every_sampled_token_with_its_bytes() -> None:
    async with serving(always([*letters("é"), END])) as served:
        answer = await (await served.open()).chat([user("q")], logprobs=True)
        entries = answer["choices"][0]["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in entries) == "é<|im_end|>".encode()
        assert [entry["token"] for entry in entries] == ["bytes:\\xc3", "bytes:\\xa9", "<|im_end|>"]


# The context (case 46): the prompt is 60 tokens of 64


def filled(tokens: int) -> list[dict[str, Any]]:
    """Messages whose prompt has so many tokens."""
    frame = len(ids("<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"))
    return [user("z" * (tokens - frame))]


@pytest.mark.parametrize("asked", [{"max_tokens": 16}, {"max_completion_tokens": 16}, {}])
async def test_case_46_what_is_asked_for_is_clamped_to_what_fits(asked: dict[str, int]) -> None:
    async with serving(always(letters("hello world")), max_model_len=64) as served:
        answer = await (await served.open()).chat(filled(60), **asked)
        assert answer["usage"]["prompt_tokens"] == 60
        assert answer["usage"]["completion_tokens"] == 4
        assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("tokens", [64, 70])
async def test_case_46_a_prompt_that_leaves_no_room_is_a_typed_error_and_not_sent(tokens: int) -> None:
    async with serving(always(ids("x")), max_model_len=64) as served:
        response = await (await served.open()).post(messages=filled(tokens))
        assert response.status_code == 400
        assert response.json()["error"]["code"] == "context_length_exceeded"
        assert response.headers["x-should-retry"] == "false"
        assert served.engine.requests == []


async def test_case_46_the_turns_before_an_overflow_are_kept() -> None:
    async with serving(always([*ids("hello"), END]), max_model_len=64) as served:
        session = await served.open()
        messages = [user("hello")]
        turns = 0
        while (response := await session.post(messages=messages)).status_code == 200:
            turns += 1
            messages += [response.json()["choices"][0]["message"], user("hello")]
        assert response.json()["error"]["code"] == "context_length_exceeded"
        [row] = (await served.trajectory(session))["rows"]
        assert turns > 2
        assert sum(row["loss_mask"]) == 2 * turns


# Refusals


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("n", 0, "n"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}, "tool_choice"),
        ("top_logprobs", 3, "top_logprobs"),
        ("response_format", {"type": "json_schema"}, "response_format.schema"),
        ("response_format", {"type": "grammar"}, "response_format.type"),
        ("logit_bias", {"5": 1}, "logit_bias"),
        ("modalities", ["audio"], "modalities"),
        ("best_of", 3, "best_of"),
        ("temperature", "hot", "temperature"),
        ("temperature", 0, "temperature"),
        ("temperature", 0.005, "temperature"),
        ("top_p", 0.9, "top_p"),
        ("max_tokens", -1, "max_tokens"),
        ("messages", [], "messages"),
        ("messages", [{"role": "wizard", "content": ""}], "messages[0].role"),
        ("messages", [{"role": "user", "content": 3}], "messages[0].content"),
        ("messages", [{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ("messages", [{"role": "user", "content": "", "mood": "good"}], "messages[0].mood"),
        ("messages", [{"role": "tool", "content": ""}], "messages[0]"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
    ],
)
async def test_what_is_not_supported_is_a_400_that_names_the_field(field: str, value: Any, named: str) -> None:
    async with serving(always([END])) as served:
        response = await (await served.open()).post(**{"messages": [user("q")], field: value})
        error = response.json()["error"]
        assert (response.status_code, error["param"], error["type"]) == (400, named, "invalid_request_error")
        assert served.engine.requests == []


async def test_a_body_that_is_no_json_is_a_400() -> None:
    async with serving(always([END])) as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        for body in (b"", b"{", b"[]", b'"\xff"', b"[" * 100_000):
            response = await served.http.post(f"{session.base_url}/chat/completions", content=body, headers=headers)
            assert response.status_code == 400, body[:10]


async def test_a_body_past_the_limit_is_a_413() -> None:
    async with serving(always([END]), max_body_bytes=1000) as served:
        response = await (await served.open()).post(messages=[user("x" * 2000)])
        assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")


async def test_models_lists_the_one_policy_by_every_route() -> None:
    async with serving(always([END]), model_name="mine") as served:
        session = await served.open()
        headers = {"x-api-key": session.api_key, "Authorization": ""}
        for url in ("/v1/models", f"{session.base_url}/models"):
            assert [m["id"] for m in (await served.http.get(url, headers=headers)).json()["data"]] == ["mine"]


async def test_a_model_is_found_by_its_id_as_the_list_has_it_and_no_other_is() -> None:
    async with serving(always([END]), model_name="org/mine") as served:
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        for url in ("/v1/models", f"{session.base_url}/models"):
            [listed] = (await served.http.get(url, headers=headers)).json()["data"]
            assert (await served.http.get(f"{url}/org/mine", headers=headers)).json() == listed
            missing = await served.http.get(f"{url}/other", headers=headers)
            assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")
        assert (await served.http.get("/v1/models/org/mine", headers={"Authorization": ""})).status_code == 401


async def test_case_15_every_field_of_the_distribution_is_sent_and_kept_with_the_call() -> None:
    async with serving(always([END])) as served:
        session = await served.open(sampling={"temperature": 0.5})
        await session.chat([user("q")], temperature=2, max_tokens=9)
        sent = served.engine.requests[0].sampling_params
        assert {name: sent[name] for name in ("temperature", "top_p", "top_k", "repetition_penalty")} == {
            "temperature": 0.5,
            "top_p": 1.0,
            "top_k": 0,
            "repetition_penalty": 1.0,
        }
        [call] = (await served.trajectory(session))["calls"]
        assert (call["sampling"]["temperature"], call["sampling"]["max_tokens"]) == (0.5, 9)


def called_with(arguments: str) -> list[dict[str, Any]]:
    """A conversation in which the policy called a tool with these arguments."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [user("q"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("go on")]


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("value", ['"\\ud800"', nested(500), nested(980)])
async def test_arguments_that_cannot_be_written_again_stand_as_they_are_spelt(value: str) -> None:
    """Half a character, or nested deeper than Python follows: a policy can sample both."""
    arguments = f'{{"a": {value}}}'
    async with serving(always([END])) as served:
        await (await served.open()).chat(called_with(arguments))
        [prompt] = served.engine.prompts
        assert arguments in renderer().text(prompt).replace('\\"', '"').replace("\\\\", "\\")


async def test_a_tool_schema_that_is_nested_too_deep_is_a_400_that_says_so() -> None:
    async with serving(always([END])) as served:
        function = f'{{"name": "f", "parameters": {{"a": {nested(700)}}}}}'
        tools = f'[{{"type": "function", "function": {function}}}]'
        body = f'{{"messages": [{{"role": "user", "content": "q"}}], "tools": {tools}}}'
        session = await served.open()
        headers = {"Authorization": f"Bearer {session.api_key}"}
        response = await served.http.post(f"{session.base_url}/chat/completions", content=body, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")


async def test_a_large_request_is_encoded_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Invariant 9: one client's megabytes do not hold up the others."""
    threads: list[threading.Thread] = []
    first = Renderer.first

    def watched(self: Renderer, *arguments: Any) -> list[int]:
        threads.append(threading.current_thread())
        return first(self, *arguments)

    monkeypatch.setattr(Renderer, "first", watched)
    async with serving(always([END])) as served:
        session = await served.open()
        await session.chat([user("hello")])
        response = await session.post(messages=[user("hello " * 40_000)])
        assert response.json()["error"]["code"] == "context_length_exceeded"
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_an_idle_connection_outlives_the_pools_of_sdks() -> None:
    """A server that closes first breaks the request that is being sent into the connection."""
    async with serving(always([END])) as served:
        assert served.server._server is not None
        kept_s = openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry
        assert kept_s is not None
        assert served.server._server.config.timeout_keep_alive > kept_s
