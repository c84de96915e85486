"""What masks the distribution: structured output and forced calls. The engine is told so, and nothing is trained."""

from __future__ import annotations

import json
from typing import Any

import pydantic
import pytest
from gateway_builders import CHATML, END, WEATHER, always, ids, letters, renderer, says, serving, user
from openai_builders import CALL, NOW, comparable, folded, sdk_of, streamed
from template_families import FAMILIES as TEMPLATES

from agentrl.engine.scripted import scripted_logprob
from agentrl.gateway.dialects.chat import decode
from agentrl.gateway.parsers import FAMILIES, family_for
from agentrl.gateway.planner import Planner
from agentrl.gateway.request import Conversation, TurnRequest
from agentrl.gateway.session import Session

QUESTION: list[Any] = [user("q")]
TOOLS: Any = [WEATHER, {"type": "function", "function": {"name": "now"}}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
AS_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
NAMED: Any = {"type": "function", "function": {"name": "now"}}
THINKS = CHATML.replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
JSON = [*letters('{"a": 1}'), END]


def sent_outputs(request: Any) -> Any:
    """The structured outputs that the engine was sent; a structural tag is JSON in a string."""
    found = request.sampling_params.get("structured_outputs")
    return found if found is None or "structural_tag" not in found else json.loads(found["structural_tag"])


# Structured output


@pytest.mark.parametrize(
    ("asked", "sent"),
    [(AS_SCHEMA, {"json": SCHEMA}), ({"type": "json_object"}, {"json_object": True}), ({"type": "text"}, None)],
    ids=["schema", "object", "text"],
)
@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_the_engine_is_told_the_response_format_and_what_it_shaped_is_counted(
    asked: Any, sent: Any, path: str
) -> None:
    async with serving(always(JSON)) as served:
        session = await served.open()
        prompt = {"messages": QUESTION} if path == "chat/completions" else {"prompt": "q"}
        headers = {"Authorization": f"Bearer {session.api_key}"}
        body = {"response_format": asked, **prompt}
        answer = await served.http.post(f"{session.base_url}/{path}", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        [request] = served.engine.requests
        assert sent_outputs(request) == sent
        trajectory = await served.trajectory(session)
        if sent is None:
            assert ([sum(row["loss_mask"]) for row in trajectory["rows"]], trajectory["dropped"]) == ([len(JSON)], {})
        else:
            assert (trajectory["rows"], trajectory["dropped"]) == ([], {"constrained": len(JSON)})


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of the SDK, over the answer that it parsed
async def test_the_sdk_parses_what_its_model_of_the_answer_asked_for() -> None:
    class Found(pydantic.BaseModel):
        a: int

    async with serving(always(JSON)) as served:
        session = await served.open()
        async with sdk_of(session) as sdk:
            parsed = await sdk.chat.completions.parse(model="policy", messages=QUESTION, response_format=Found)
            async with sdk.chat.completions.stream(model="policy", messages=QUESTION, response_format=Found) as events:
                by_events = await events.get_final_completion()
            assert parsed.choices[0].message.parsed == by_events.choices[0].message.parsed == Found(a=1)
            again = [*QUESTION, by_events.choices[0].message, user("r")]
            await sdk.chat.completions.parse(model="policy", messages=again, response_format=Found)
        assert sent_outputs(served.engine.requests[0])["json"]["required"] == ["a"]
        calls = (await served.trajectory(session))["calls"]
        assert calls[-1]["parent"] is not None


async def test_a_turn_after_one_that_was_not_trained_is_trained_with_it_as_context() -> None:
    async with serving(says(JSON, [*letters("ok"), END])) as served:
        session = await served.open()
        answer = await session.chat(QUESTION, response_format=AS_SCHEMA)
        await session.chat([*QUESTION, answer["choices"][0]["message"], user("r")])
        trajectory = await served.trajectory(session)
        [row] = trajectory["rows"]
        assert row["token_ids"] == [*served.engine.prompts[1], *letters("ok"), END]
        assert sum(row["loss_mask"]) == len(letters("ok")) + 1
        assert trajectory["dropped"] == {"constrained": len(JSON)}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_logprobs_of_a_sample_that_is_not_trained_are_given_all_the_same(streaming: bool) -> None:
    async with serving(always(JSON)) as served:
        session = await served.open()
        asked: Any = {"response_format": AS_SCHEMA, "logprobs": True, "top_logprobs": 1}
        if streaming:
            [choice] = folded(await streamed(session, **asked))["choices"]
        else:
            async with sdk_of(session) as sdk:
                found = await sdk.chat.completions.create(model="policy", messages=QUESTION, **asked)
            [choice] = comparable(found)["choices"]
        given = [entry["logprob"] for entry in choice["logprobs"]["content"]]
        assert given == [scripted_logprob(token_id, 0) for token_id in JSON]


async def test_thoughts_that_the_prompt_opened_are_left_free_and_the_answer_is_kept_to_the_schema() -> None:
    thought = [*ids("hm</think>"), *JSON]
    async with serving(always(thought), template=THINKS) as served:
        answer = await (await served.open()).chat(QUESTION, response_format=AS_SCHEMA)
        message = answer["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("hm", '{"a": 1}')
        before, _, after = sent_outputs(served.engine.requests[0])["format"]["elements"]
        assert (before["content"], before["end"]) == ({"type": "any_text"}, "</think>")
        assert (after["type"], after["json_schema"]) == ("json_schema", SCHEMA)


async def test_with_tools_the_answer_is_kept_to_the_schema_or_to_a_call() -> None:
    """As an agent that has tools and a type for its last answer sends it."""
    async with serving(says([*ids(NOW), END], JSON)) as served:
        session = await served.open()
        answer = await session.chat(QUESTION, tools=TOOLS, response_format=AS_SCHEMA)
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        calls, schema = sent_outputs(served.engine.requests[0])["format"]["elements"]
        assert (schema["type"], schema["json_schema"]) == ("json_schema", SCHEMA)
        assert calls == json.loads(FAMILIES["hermes"].forced(TOOLS, None, True).value)["format"]


# Forced calls


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"plain"}))
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_call_is_sent_as_the_family_writes_it(name: str, choice: Any, parallel: bool) -> None:
    family, turn = FAMILIES[name], {"messages": QUESTION, "tools": TOOLS, "tool_choice": choice}
    conversation = decoded({**turn, "parallel_tool_calls": parallel})
    session = Session("s", b"", now=0.0)
    [plan] = Planner(renderer(), family).plan(session, TurnRequest(prompts=[conversation]), "c")
    named = None if choice == "required" else "now"
    assert plan.sampling.constraint == family.forced(TOOLS, named, parallel)


def decoded(body: dict[str, Any]) -> Conversation:
    [prompt] = decode(json.dumps(body).encode())[0].prompts
    assert isinstance(prompt, Conversation)
    return prompt


@pytest.mark.parametrize("family", TEMPLATES, ids=lambda family: family.name)
def test_every_templates_family_of_calls_can_be_forced(family: Any) -> None:
    sent = family_for(family.template).forced(TOOLS, "now", False)
    assert sent.kind == "structural_tag"
    assert "now" in sent.value


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
async def test_a_required_call_is_given_and_counted_and_not_trained(choice: Any) -> None:
    async with serving(always([*ids(NOW), END])) as served:
        session = await served.open()
        answer = await session.chat(QUESTION, tools=TOOLS, tool_choice=choice)
        [call] = answer["choices"][0]["message"]["tool_calls"]
        assert call["function"] == {"name": "now", "arguments": "{}"}
        trajectory = await served.trajectory(session)
        assert (trajectory["rows"], trajectory["dropped"]) == ([], {"constrained": len(ids(NOW)) + 1})


async def test_tool_choice_auto_and_none_constrain_nothing() -> None:
    async with serving(always([*ids(NOW), END])) as served:
        session = await served.open()
        for choice in ("auto", "none"):
            await session.chat(QUESTION, tools=TOOLS, tool_choice=choice)
        assert [sent_outputs(request) for request in served.engine.requests] == [None, None]
        assert len((await served.trajectory(session))["rows"]) == 2


# One call at a time


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_without_parallel_calls_sampling_ends_behind_the_first_call(streaming: bool) -> None:
    """The engine is asked to end there; what one samples beyond is counted."""
    [end] = ids("</tool_call>")
    first, beyond = ids(CALL), [*ids(f"\n{NOW}"), END]
    async with serving(always([*first, *beyond])) as served:
        served.engine.stream_interval = 100
        session = await served.open()
        asked: Any = {"tools": TOOLS, "parallel_tool_calls": False}
        if streaming:
            [choice] = folded(await streamed(session, **asked))["choices"]
        else:
            [choice] = (await session.chat(QUESTION, **asked))["choices"]
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
        assert choice["finish_reason"] == "tool_calls"
        assert end in served.engine.requests[0].sampling_params["stop_token_ids"]
        trajectory = await served.trajectory(session)
        assert [call["token_ids"] for call in trajectory["calls"][:1]] == [first]
        assert trajectory["dropped"] == {"past_stop": len(beyond)}


@pytest.mark.parametrize("asked", [{"tool_choice": "required"}, {"response_format": AS_SCHEMA}], ids=["call", "schema"])
async def test_inside_a_grammar_the_end_of_a_call_is_no_stop_token(asked: dict[str, Any]) -> None:
    """Engines never sample stop tokens there, so the policy would have to spell the mark. The grammar ends it."""
    turn = [*ids(NOW), END]
    async with serving(always(turn)) as served:
        session = await served.open()
        answer = await session.chat(QUESTION, tools=TOOLS, parallel_tool_calls=False, **asked)
        assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
        sent = served.engine.requests[0].sampling_params
        assert ids("</tool_call>")[0] not in sent["stop_token_ids"]
        assert (await served.trajectory(session))["dropped"] == {"constrained": len(turn)}


async def test_the_turn_after_the_one_call_closes_it_and_goes_on() -> None:
    async with serving(says(ids(CALL), [END])) as served:
        session = await served.open()
        answer = (await session.chat(QUESTION, tools=TOOLS, parallel_tool_calls=False))["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "rain"}
        await session.chat([*QUESTION, answer, result], tools=TOOLS)
        first, second = served.engine.prompts
        assert second[: len(first) + len(ids(CALL)) + 1] == [*first, *ids(CALL), END]
        [row] = (await served.trajectory(session))["rows"]
        assert sum(row["loss_mask"]) == len(ids(CALL)) + 1


@pytest.mark.parametrize("name", ["llama3", "mistral"])
async def test_families_without_an_end_of_calls_give_one_call_all_the_same(name: str) -> None:
    calls = {
        "llama3": '{"name": "weather", "parameters": {}}; {"name": "now", "parameters": {}}',
        "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {}}, {"name": "now", "arguments": {}}]',
    }
    async with serving(always([*letters(calls[name]), END]), parser=name) as served:
        session = await served.open()
        both = await session.chat(QUESTION, tools=TOOLS)
        assert len(both["choices"][0]["message"]["tool_calls"]) == 2
        one = await session.chat(QUESTION, tools=TOOLS, parallel_tool_calls=False)
        assert [call["function"]["name"] for call in one["choices"][0]["message"]["tool_calls"]] == ["weather"]
        assert one["choices"][0]["finish_reason"] == "tool_calls"


# Alternatives


async def test_top_logprobs_are_asked_of_the_engine_and_change_nothing_that_is_trained() -> None:
    async with serving(always([*letters("hi"), END])) as served:
        session = await served.open()
        await session.chat(QUESTION, logprobs=True, top_logprobs=3)
        assert served.engine.requests[0].sampling_params["logprobs"] == 3
        [row] = (await served.trajectory(session))["rows"]
        assert sum(row["loss_mask"]) == 3


# Refusals


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"tools": TOOLS, "tool_choice": "required", "response_format": AS_SCHEMA}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": NAMED, "response_format": {"type": "json_object"}}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format.schema"),
        ({"response_format": {"type": "regex"}}, "response_format.type"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 1}, "top_logprobs"),
    ],
)
async def test_combinations_that_cannot_be_served_are_a_400(body: dict[str, Any], named: str) -> None:
    async with serving(always([END])) as served:
        response = await (await served.open()).post(messages=QUESTION, **body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, named)
        assert served.engine.requests == []


async def test_a_call_cannot_be_forced_on_a_model_whose_calls_are_not_known() -> None:
    async with serving(always([END]), parser="plain") as served:
        session = await served.open()
        response = await session.post(messages=QUESTION, tools=TOOLS, tool_choice="required")
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
        answer = await session.post(messages=QUESTION, tools=TOOLS, response_format=AS_SCHEMA)
        assert answer.status_code == 200
