"""Episodes over the Responses API with the `openai` SDK: one row each, whichever way the history is carried."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import openai
import pytest
from gateway_builders import END, Opened, Served, backend, ids, letters, says, serving, user
from openai.types.responses import Response
from responses_builders import WEATHER_TOOL

from agentrl.engine.scripted import Fault

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
THINKS = [*ids("<think>\nhm\n</think>\n\nLet me look.\n"), *letters(CALL), END]
ANSWERS = [*letters("rain"), END]
TOOL_TURN = ids("\n<|im_start|>tool\nwet<|im_end|>\n<|im_start|>assistant\n")


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(says(THINKS, ANSWERS)) as served:
        yield served


def sdk_of(session: Opened) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0)


async def respond(sdk: openai.AsyncOpenAI, streaming: bool, **body: Any) -> Response:
    """One response by the SDK's own method; a stream as the SDK adds it up."""
    body = {"model": "policy", "tools": [WEATHER_TOOL], "instructions": "Be brief.", **body}
    if not streaming:
        return await sdk.responses.create(**body)
    async with sdk.responses.stream(**body) as events:
        return await events.get_final_response()


def by_id(first: Response, result: dict[str, Any]) -> dict[str, Any]:
    return {"previous_response_id": first.id, "input": [result]}


def by_echo(first: Response, result: dict[str, Any]) -> dict[str, Any]:
    return {"input": [user("weather in Paris?"), *first.output, result]}


def by_echo_without_reasoning(first: Response, result: dict[str, Any]) -> dict[str, Any]:
    kept = [item for item in first.output if item.type != "reasoning"]
    return {"input": [user("weather in Paris?"), *kept, result]}


def by_echo_without_ids(first: Response, result: dict[str, Any]) -> dict[str, Any]:
    items = [item.model_dump(exclude={"id", "status"}, exclude_none=True) for item in first.output]
    return {"input": [user("weather in Paris?"), *items, result]}


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("history", [by_id, by_echo, by_echo_without_reasoning, by_echo_without_ids])
async def test_a_tool_episode_is_one_row_of_what_the_engine_saw(
    served: Served, streaming: bool, history: Callable[[Response, dict[str, Any]], dict[str, Any]]
) -> None:
    session = await served.open()
    async with sdk_of(session) as sdk:
        first = await respond(sdk, streaming, input="weather in Paris?")
        call = first.output[-1]
        assert call.type == "function_call"
        assert (call.name, call.arguments) == ("weather", '{"city": "Paris"}')
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "wet"}
        second = await respond(sdk, streaming, **history(first, result))
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    assert (second.output_text, second.status) == ("rain", "completed")
    prompt, extended = served.engine.prompts
    assert extended == [*prompt, *THINKS, *TOOL_TURN]
    [row] = (await served.trajectory(session))["rows"]
    assert row["token_ids"] == [*extended, *ANSWERS]
    assert row["loss_mask"] == [0] * len(prompt) + [1] * len(THINKS) + [0] * len(TOOL_TURN) + [1] * len(ANSWERS)


async def test_a_streamed_and_a_whole_response_of_the_same_tokens_are_equal_field_by_field() -> None:
    async with serving(says(THINKS, THINKS)) as served:
        bodies = []
        for streaming in (False, True):
            async with sdk_of(await served.open()) as sdk:
                bodies.append((await respond(sdk, streaming, input="weather in Paris?")).to_dict())
    whole, streamed = (_without_identity(body) for body in bodies)
    assert streamed == whole


def _without_identity(body: dict[str, Any]) -> dict[str, Any]:
    """Without ids, times and what the SDK's helpers add."""
    added = ("id", "call_id", "created_at", "completed_at", "parsed", "parsed_arguments")

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key not in added}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return dict(strip(body))


async def test_text_arrives_while_the_engine_is_still_sampling() -> None:
    async with serving(says([*letters("Hello"), END])) as served:
        served.engine.hold()
        served.engine.allow(2)
        async with sdk_of(await served.open()) as sdk:
            events = await sdk.responses.create(model="policy", input="hi", stream=True)
            deltas = (event.delta async for event in events if event.type == "response.output_text.delta")
            begun = await anext(deltas)
            assert served.engine.requests[0].finish_reason is None
            served.engine.release()
            assert begun + "".join([delta async for delta in deltas]) == "Hello"


async def test_an_engine_that_fails_in_the_middle_makes_the_sdk_raise() -> None:
    async with serving(says([*letters("Hello"), END])) as served:
        served.engine.fail_next(Fault(kind="error", after=2))
        async with sdk_of(await served.open()) as sdk:
            events = await sdk.responses.create(model="policy", input="hi", stream=True)
            seen: list[str] = []
            with pytest.raises(openai.APIError):
                await _read(events, seen)
    assert seen[-1] == "response.failed"


async def _read(events: Any, seen: list[str]) -> None:
    async for event in events:
        seen.append(event.type)


async def test_a_json_schema_constrains_the_engine_and_what_it_samples_is_not_trained() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    form: Any = {"type": "json_schema", "name": "place", "schema": schema}
    async with serving(says([*letters('{"city": "Paris"}'), END])) as served:
        session = await served.open()
        async with sdk_of(session) as sdk:
            response = await sdk.responses.create(model="policy", input="where?", text={"format": form})
        assert response.output_text == '{"city": "Paris"}'
        assert served.engine.requests[0].sampling_params["structured_outputs"]["json"] == schema
        assert (await served.trajectory(session))["rows"] == []


async def test_the_response_id_is_the_id_of_the_recorded_call(served: Served) -> None:
    session = await served.open()
    async with sdk_of(session) as sdk:
        response = await respond(sdk, False, input="q")
    [call] = (await served.trajectory(session))["calls"]
    assert response.id == call["call_id"]
    assert response.id.startswith("resp_")


async def test_a_previous_response_that_the_session_does_not_have_is_refused(served: Served) -> None:
    async with sdk_of(await served.open()) as sdk:
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.responses.create(model="policy", input="q", previous_response_id="resp_0")
    assert refused.value.param == "previous_response_id"


async def test_instructions_are_not_inherited_by_the_next_response(served: Served) -> None:
    session = await served.open()
    async with sdk_of(session) as sdk:
        first = await respond(sdk, False, input="q")
        await respond(sdk, False, input="r", previous_response_id=first.id, instructions="Be kind.")
    text = backend().decode(served.engine.prompts[1], skip_special_tokens=False)
    assert "system\nBe kind.<|im_end|>" in text
    assert "Be brief." not in text
