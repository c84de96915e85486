"""verifiers environments (v1): one turn, a tool, a user; their rubrics; model calls at the policy's own URL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import verifiers_sums
from adapter_episode import ADAPTERS, call
from aiohttp import web
from tokenizers import Tokenizer

import agentrl
from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import registry
from agentrl.env.adapters.verifiers import Verifiers
from agentrl.env.policy import Policy
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.messages import Message
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.types import Episode, Sampling, Task, Trajectory

VERIFIERS = f"{ADAPTERS}:Verifiers"
HERE = str(Path(__file__).parent)
SUMS: dict[str, Any] = {"taskset": "verifiers_sums"}


@pytest.fixture(autouse=True)
def tool_servers_find_their_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a test the taskset is an installed package."""
    monkeypatch.setenv("PYTHONPATH", HERE)


class Endpoint:
    """An OpenAI-compatible endpoint whose model is a function, and what was asked of it."""

    def __init__(self, model: Callable[[list[Message]], Message | str]) -> None:
        self.model = model
        self.requests: list[dict[str, Any]] = []
        self.keys: set[str] = set()

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.add(request.headers["Authorization"])
        reply = self.model([Message(message) for message in body["messages"]])
        if reply == "refuse":
            return web.json_response({"error": {"message": "the engine is gone", "type": "server_error"}}, status=400)
        message = reply if isinstance(reply, Message) else agentrl.assistant(reply)
        reason = "tool_calls" if message.tool_calls else "stop"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return web.json_response(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "policy",
                "choices": [choice],
                "usage": usage,
            }
        )


@asynccontextmanager
async def endpoint(model: Any) -> AsyncIterator[tuple[Endpoint, Policy]]:
    served = Endpoint(model)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield served, Policy(f"http://127.0.0.1:{port}/v1", "s3cret", "policy", ask=lambda *given: None)
    await runner.cleanup()


async def run(model: Any, *, index: int = 4, **options: Any) -> tuple[Any, Endpoint]:
    async with endpoint(model) as (served, policy):
        program = Verifiers(**{**SUMS, **options})
        task = Task(id="t", options={"index": index})
        return await asyncio.wait_for(program.run(task, policy), 60), served


async def test_a_single_turn_is_scored_by_the_tasks_own_rubric() -> None:
    right, served = await run(lambda messages: "5")
    wrong, _ = await run(lambda messages: "It is 7, I think.")
    assert right == {"right": 1.0, "short": 0.5}
    assert wrong == {"right": 0.0, "short": 0.0}
    assert [message["content"] for message in served.requests[0]["messages"]] == ["Add.", "What is 4+1?"]


async def test_the_policy_is_called_with_its_own_key_and_no_sampling_of_anybodys() -> None:
    _, served = await run(lambda messages: "5")
    assert served.keys == {"Bearer s3cret"}
    assert set(served.requests[0]) == {"model", "messages"}


async def test_a_tool_of_the_task_is_offered_called_and_its_errors_told() -> None:
    replies = iter([call("adder_add", '{"a": 4, "b": 1}'), call("adder_add", "{"), call("add", "{}"), "5"])
    reward, served = await run(lambda messages: next(replies), config={"task": {"tools": True}})
    [tool] = served.requests[0]["tools"]
    assert tool["function"]["name"] == "adder_add"
    assert tool["function"]["parameters"]["required"] == ["a", "b"]
    answers = [message["content"] for message in served.requests[-1]["messages"] if message["role"] == "tool"]
    assert answers[0] == "5"
    assert answers[1].startswith("Error: the arguments are not valid JSON")
    assert answers[2] == "Error: unknown tool 'add'"
    assert reward == {"right": 1.0, "short": 0.5}


async def test_a_user_speaks_between_the_turns() -> None:
    def model(messages: list[Message]) -> str:
        return "5" if messages[-1].text == "Are you sure?" else "four"

    reward, served = await run(model, config={"kind": "talk"})
    assert [message["content"] for message in served.requests[1]["messages"]] == [
        "Add.", "What is 4+1?", "four", "Are you sure?",
    ]  # fmt: skip
    assert reward == {"right": 1.0, "short": 0.5}


async def test_a_limit_of_verifiers_ends_the_exchange_and_it_is_scored() -> None:
    options = {"config": {"kind": "talk"}, "agents": {"agent": {"max_turns": 1}}}
    reward, served = await run(lambda messages: "four", **options)
    assert len(served.requests) == 1
    assert reward == {"right": 0.0, "short": 0.5}


async def test_a_broken_rubric_is_no_wrong_answer() -> None:
    with pytest.raises(agentrl.EnvironmentFault, match="the rubric is broken"):
        await run(lambda messages: "5", config={"kind": "broken"})


async def test_a_policy_that_cannot_be_called_is_no_wrong_answer() -> None:
    with pytest.raises(agentrl.EnvironmentFault, match="the engine is gone"):
        await run(lambda messages: "refuse")


async def test_episodes_at_the_same_time_keep_their_keys_and_answers() -> None:
    async def one(index: int) -> Any:
        return (await run(lambda messages: str(index + 1), index=index))[0]

    rewards = await asyncio.gather(*(one(index) for index in range(4)))
    assert list(rewards) == [{"right": 1.0, "short": 0.5}] * 4


def test_one_task_in_ten_is_held_out_and_the_order_follows_the_seed() -> None:
    def indices(split: str, seed: int = 0) -> list[int]:
        found = registry.tasks(VERIFIERS, split=split, seed=seed, env_kwargs=SUMS)
        return [task.options["index"] for task in found]

    assert sorted(indices("eval")) == [0, 10]
    assert sorted(indices("train")) == [number for number in range(20) if number % 10]
    assert indices("train") == indices("train") != indices("train", seed=1)


def test_an_evaluation_may_have_settings_of_its_own() -> None:
    options = {**SUMS, "eval_config": {"count": 3}}
    found = list(registry.tasks(VERIFIERS, split="eval", seed=0, env_kwargs=options))
    assert sorted(task.options["index"] for task in found) == [0, 1, 2]
    assert len(list(registry.tasks(VERIFIERS, split="train", seed=0, env_kwargs=options))) == 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"taskset": "no_such_taskset_here"}, "verifiers has no taskset 'no_such_taskset_here'"),
        ({**SUMS, "config": {"colour": 1}}, "verifiers has no taskset 'verifiers_sums' with"),
        ({}, "give the option `taskset`"),
        ({**SUMS, "held_out": 1}, "give 2 or more"),
    ],
)
def test_tasks_that_cannot_be_had_are_a_config_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(agentrl.ConfigError, match=said):
        list(registry.tasks(VERIFIERS, split="train", seed=0, env_kwargs=options))


async def test_an_agent_that_is_not_there_is_a_config_error() -> None:
    with pytest.raises(agentrl.ConfigError, match="has no agent called 'judge'; it has agent"):
        await run(lambda messages: "5", agents={"judge": {}})


def test_the_taskset_is_the_packages_own_kind() -> None:
    assert json.dumps(verifiers_sums.SumsConfig().model_dump()["count"]) == "20"


async def in_a_run(config: RolloutConfig, options: dict[str, Any]) -> tuple[Episode, Trajectory]:
    """One episode with the real gateway and an engine by script: it adds 4 and 1 with the tool, and says the result."""
    model = resolve_model(EMBEDDED)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")

    def policy(prompt_ids: Sequence[int], sampling: Sampling, version: int) -> list[int]:
        last = tokenizer.decode(list(prompt_ids), skip_special_tokens=False).split("<|im_start|>")[-2]
        request = {"name": "adder_add", "arguments": {"a": 4, "b": 1}}
        text = last.partition("\n")[2].removesuffix("<|im_end|>\n")
        said = text if last.startswith("tool") else f"<tool_call>\n{json.dumps(request)}\n</tool_call>"
        return [*tokenizer.encode(said, add_special_tokens=False).ids, end]

    store = MemoryStore()
    async with ScriptedEngine(policy) as engine:
        server = GatewayServer(
            GatewayConfig(engine_urls=(engine.url,)),
            renderer=Renderer.load(model),
            engine_factory=HttpEngineClient,
            sink=store,
        )
        worker = RolloutWorker(config, await server.start(), server.admin_key, env_kwargs=options)
        try:
            task = Task(id="t", env_id=VERIFIERS, options={"index": 4})
            [episode] = (await worker.run_group("g", task, size=1, version=0)).episodes
        finally:
            await worker.close()
            await server.stop()
    return episode, store.get(episode.session_id)


async def test_in_a_run_its_tokens_are_recorded_by_the_gateway_and_its_rewards_are_components() -> None:
    options = {**SUMS, "config": {"task": {"tools": True}}}
    episode, trajectory = await in_a_run(RolloutConfig(max_tokens=64), options)
    [row] = trajectory.rows
    assert (episode.stop_reason, episode.reward, episode.error) == ("done", 1.5, None)
    assert trajectory.components == {"right": 1.0, "short": 0.5}
    assert sum(row.loss_mask) == sum(len(made.token_ids) for made in trajectory.calls)
    assert len(trajectory.calls) == 2


async def test_a_limit_of_the_run_ends_the_episode_as_one_and_not_as_a_failure() -> None:
    options = {**SUMS, "config": {"kind": "talk"}}
    episode, trajectory = await in_a_run(RolloutConfig(max_tokens=64, max_turns=1), options)
    assert (episode.stop_reason, episode.reward, len(trajectory.calls)) == ("max_turns", 0.0, 1)
