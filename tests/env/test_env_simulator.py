"""Simulated users: what they see, who plays them, and that their failure is never the policy's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

import agentrl
from agentrl import retry
from agentrl.env.simulator import Simulator, as_the_user_sees_it
from agentrl.env.threads import HungCalls
from agentrl.rollout.episode import run_episode
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.types import Episode, Limits, Sampling, Task


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "MAX_BACKOFF_S", 0.0)
    monkeypatch.setattr(retry, "MAX_RETRY_AFTER_S", 0.0)


class Endpoint:
    """An OpenAI-compatible endpoint that answers from a list: a text, or a status."""

    def __init__(self, *answers: str | int) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[dict[str, Any], str | None]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json(), request.headers.get("Authorization")))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, int):
            return web.json_response({"error": {"message": f"because {answer}"}}, status=answer)
        return web.json_response({"choices": [{"message": {"role": "assistant", "content": answer}}]})


@asynccontextmanager
async def serving(endpoint: Endpoint) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
CONVERSATION = [
    agentrl.system("You sell shoes."),
    agentrl.user("I want boots."),
    agentrl.assistant(None, tool_calls=[CALL]),
    agentrl.tool_message("12 pairs", tool_call_id="c"),
    agentrl.assistant("Which size?"),
]


def test_the_simulated_user_sees_the_other_side_and_nothing_of_the_policys_instructions_and_tools() -> None:
    seen = as_the_user_sees_it(CONVERSATION, persona="You want boots of size 9.", greeting="Hello!")
    assert seen == [
        agentrl.system("You want boots of size 9."),
        agentrl.user("Hello!"),
        agentrl.assistant("I want boots."),
        agentrl.user("Which size?"),
    ]


def test_a_policy_that_speaks_first_is_its_own_greeting() -> None:
    assert as_the_user_sees_it([agentrl.assistant("Shoes?")], persona=None) == [agentrl.user("Shoes?")]


async def test_any_openai_compatible_endpoint_plays_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATOR_KEY", "k-1")
    endpoint = Endpoint("Size 9, please.")
    async with serving(endpoint) as url:
        simulator = Simulator.at(url, model="m", persona="P", key_env="SIMULATOR_KEY", temperature=0.5)
        assert await simulator.reply(CONVERSATION) == agentrl.user("Size 9, please.")
    ((body, key),) = endpoint.asked
    assert (body["model"], body["temperature"], key) == ("m", 0.5, "Bearer k-1")
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]


async def test_plain_code_gets_the_message_without_awaiting() -> None:
    async with serving(Endpoint("Nine.")) as url:
        simulator = Simulator.at(url, model="m", persona="P", key_env=None)
        assert await asyncio.to_thread(simulator.reply, CONVERSATION) == agentrl.user("Nine.")


async def test_a_busy_endpoint_is_asked_again() -> None:
    endpoint = Endpoint(503, 429, "Nine.")
    async with serving(endpoint) as url:
        simulator = Simulator.at(url, model="m", persona="P", key_env=None)
        assert (await simulator.reply(CONVERSATION)).text == "Nine."
    assert len(endpoint.asked) == 3


def test_a_key_that_is_not_set_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SIMULATOR_KEY", raising=False)
    with pytest.raises(agentrl.ConfigError, match="export SIMULATOR_KEY"):
        Simulator.at("http://x/v1", model="m", persona="P", key_env="SIMULATOR_KEY")


@pytest.mark.parametrize(
    ("answer", "said", "asked"),
    [
        (500, "did not answer in 2 attempts", 2),
        (401, "refused with 401", 1),
        ("  ", "said nothing", 1),
    ],
)
async def test_a_failure_is_an_environment_fault_with_its_cause(answer: str | int, said: str, asked: int) -> None:
    endpoint = Endpoint(answer)
    async with serving(endpoint) as url:
        simulator = Simulator.at(url, model="m", persona="P", key_env=None, attempts=2)
        with pytest.raises(agentrl.EnvironmentFault, match=said):
            await simulator.reply(CONVERSATION)
    assert len(endpoint.asked) == asked


async def test_an_endpoint_that_never_answers_ends_in_its_timeout() -> None:
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    simulator = Simulator.at(url, model="m", persona="P", key_env=None, timeout_s=0.05, attempts=1)
    with pytest.raises(agentrl.EnvironmentFault, match=r"took longer than 0\.05 s"):
        await simulator.reply(CONVERSATION)
    server.close()


async def test_a_script_needs_no_model() -> None:
    simulator = Simulator.scripted(["one", "two"])
    assert [(await simulator.reply([])).text for _ in range(2)] == ["one", "two"]
    with pytest.raises(agentrl.EnvironmentFault, match="nothing left to say"):
        await simulator.reply([])
    echo = Simulator.scripted(lambda messages: f"You said {messages[-1].text}")
    assert (await echo.reply([agentrl.assistant("no")])).text == "You said no"


class Shop(agentrl.ToolEnv):
    """A user who is simulated; the tool asks it."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator = simulator

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [self.simulator.reply([])], {}

    @agentrl.tool
    def ask(self, question: str) -> str:
        """Ask the customer."""
        text: str = self.simulator.reply([agentrl.assistant(question)]).text
        return text

    def score(self, message: agentrl.Message) -> float:
        return float(message.text == "size 9")


async def play(simulator: Simulator) -> Episode:
    question = {"id": "c", "type": "function", "function": {"name": "ask", "arguments": '{"question": "Which?"}'}}

    def policy(messages: list[agentrl.Message]) -> Any:
        last = messages[-1]
        return last.text if last.role == "tool" else agentrl.assistant(None, tool_calls=[question])

    return await run_episode(
        lambda: Shop(simulator),
        Task(id="t", env_id="shop"),
        ScriptedGateway(policy),
        limits=Limits(),
        sampling=Sampling(),
        hung=HungCalls(),
    )


async def test_an_environment_talks_to_its_simulated_user() -> None:
    episode = await play(Simulator.scripted(["I want boots.", "size 9"]))
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)


async def test_a_simulated_user_that_fails_costs_the_reward_even_inside_a_tool() -> None:
    """Invariant 6: the policy is not told "Error: …" and then judged by what it made of it."""
    episode = await play(Simulator.scripted(["I want boots."]))
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "the scripted user has nothing left to say" in (episode.error or "")
