"""An agent of the `openai-agents` package, unmodified, over Responses and over chat completions: one row per run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import agents
import openai
import pytest
from gateway_builders import END, Opened, ids, letters, says, serving

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OTHER = CALL.replace("Paris", "Rome")
LOOKS = [*ids("<think>\nhm\n</think>\n\nLet me look.\n"), *letters(f"{CALL}\n{OTHER}"), END]
ANSWERS = [*letters("It rains."), END]


@pytest.fixture(autouse=True)
def _no_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    agents.set_tracing_disabled(True)  # traces are sent to the package's authors otherwise


@agents.function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"wet in {city}"


Model = Callable[[str, openai.AsyncOpenAI], agents.Model]


def model_over_responses(name: str, sdk: openai.AsyncOpenAI) -> agents.Model:
    return agents.OpenAIResponsesModel(name, sdk)


def model_over_chat(name: str, sdk: openai.AsyncOpenAI) -> agents.Model:
    return agents.OpenAIChatCompletionsModel(name, sdk)


async def run(session: Opened, model: Model, streaming: bool, **options: Any) -> agents.result.RunResultBase:
    """Asks an agent with the tool about the weather, the package's own way."""
    async with openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as sdk:
        agent = agents.Agent(name="Forecaster", instructions="Be brief.", tools=[weather], model=model("policy", sdk))
        if not streaming:
            return await agents.Runner.run(agent, "Do I need an umbrella?", **options)
        result = agents.Runner.run_streamed(agent, "Do I need an umbrella?", **options)
        async for _ in result.stream_events():
            pass
        return result


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", [model_over_responses, model_over_chat])
async def test_an_agent_with_a_tool_is_one_row_of_what_the_engine_saw(model: Model, streaming: bool) -> None:
    async with serving(says(LOOKS, ANSWERS)) as served:
        session = await served.open()
        result = await run(session, model, streaming)
        assert result.final_output == "It rains."
        prompt, extended = served.engine.prompts
        outputs = ids(
            "\n<|im_start|>tool\nwet in Paris<|im_end|>\n<|im_start|>tool\nwet in Rome<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert extended == [*prompt, *LOOKS, *outputs]
        [row] = (await served.trajectory(session))["rows"]
        assert row["token_ids"] == [*extended, *ANSWERS]
        assert sum(row["loss_mask"]) == len(LOOKS) + len(ANSWERS)


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_an_agent_may_leave_its_history_to_the_gateway(streaming: bool) -> None:
    async with serving(says(LOOKS, ANSWERS)) as served:
        session = await served.open()
        result = await run(session, model_over_responses, streaming, auto_previous_response_id=True)
        assert result.final_output == "It rains."
        [row] = (await served.trajectory(session))["rows"]
        assert sum(row["loss_mask"]) == len(LOOKS) + len(ANSWERS)


async def test_the_usage_that_an_agent_counts_is_that_of_its_calls() -> None:
    async with serving(says(LOOKS, ANSWERS)) as served:
        usage = (await run(await served.open(), model_over_responses, False)).context_wrapper.usage
        assert usage.requests == 2
        assert usage.input_tokens == sum(map(len, served.engine.prompts))
        assert usage.output_tokens == len(LOOKS) + len(ANSWERS)
