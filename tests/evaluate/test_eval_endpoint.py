"""A served policy behind the rollout's port: what it is asked, what is kept, what its failures are."""

from __future__ import annotations

import functools

import pytest
from openai_endpoint import OpenAIEndpoint, serving

from agentrl.env import registry
from agentrl.env.policy import Policy
from agentrl.env.program import Program
from agentrl.env.threads import HungCalls
from agentrl.errors import ConfigError, GatewayError
from agentrl.messages import user
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.endpoint import UNTRAINABLE, EndpointGateway
from agentrl.rollout.episode import run_episode
from agentrl.rollout.json_client import completion
from agentrl.rollout.program import run_program
from agentrl.rollout.program_host import ProgramHost
from agentrl.store.memory import MemoryStore
from agentrl.types import Episode, Limits, Sampling, StopReason, Task
from agentrl_envs.calculator.reference import reference

CALCULATOR = "agentrl/Calculator-v0"


def gateway(endpoint: OpenAIEndpoint, store: MemoryStore, key: str | None = None) -> EndpointGateway:
    return EndpointGateway(endpoint.url, model="m", api_key=key, config=RolloutConfig(max_attempts=2), sink=store)


async def play(client: EndpointGateway) -> Episode:
    (task,) = registry.tasks(CALCULATOR, split="eval", seed=0, count=1)
    make = functools.partial(registry.make, CALCULATOR)
    return await run_episode(
        make, task, client, limits=Limits(), sampling=Sampling(temperature=0.5, max_tokens=64), mode="eval"
    )


async def test_an_episode_is_played_against_an_endpoint_and_kept_as_text() -> None:
    store = MemoryStore()
    async with serving(OpenAIEndpoint(reference, key="secret")) as endpoint:
        client = gateway(endpoint, store, "secret")
        episode = await play(client)
        await client.close()
    assert (episode.reward, episode.stop_reason) == (1.0, StopReason.DONE)
    trajectory = store.get(episode.session_id)
    assert (trajectory.mode, trajectory.reward, trajectory.stop_reason) == ("eval", 1.0, "done")
    said = [[message["role"] for message in call.messages] for call in trajectory.calls]
    assert said == [["user"], ["tool"]]
    assert [call.untrainable for call in trajectory.calls] == [UNTRAINABLE, UNTRAINABLE]
    assert [call.parent for call in trajectory.calls] == [None, 0]
    assert trajectory.rows == []


async def test_the_endpoint_is_asked_with_the_sampling_and_the_tools_of_the_episode() -> None:
    async with serving(OpenAIEndpoint(reference)) as endpoint:
        client = gateway(endpoint, MemoryStore())
        await play(client)
        await client.close()
    body = endpoint.bodies[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("m", 0.5, 64)
    assert body["tools"][0]["function"]["name"] == "calculate"


async def test_an_endpoint_that_wants_max_completion_tokens_gets_it() -> None:
    async with serving(OpenAIEndpoint(reference, limit_name="max_completion_tokens")) as endpoint:
        client = gateway(endpoint, MemoryStore())
        assert (await play(client)).reward == 1.0
        await client.close()
    assert endpoint.bodies[0]["max_completion_tokens"] == 64


async def test_an_endpoint_that_fails_leaves_the_reward_missing() -> None:
    store = MemoryStore()
    async with serving(OpenAIEndpoint(reference)) as endpoint:
        endpoint.fail_with = 500
        client = gateway(endpoint, store)
        episode = await play(client)
        await client.close()
    assert (episode.reward, episode.stop_reason) == (None, StopReason.POLICY_ERROR)
    assert "out of order" in str(episode.error)
    assert store.get(episode.session_id).reward is None


@pytest.mark.parametrize(
    "said",
    [
        None,
        "hello",
        {"content": "4"},
        {"role": "user", "content": "4"},
        {"role": "assistant", "content": 4},
        {"role": "assistant", "content": [{"type": "text", "text": None}]},
        {"role": "assistant", "content": None, "tool_calls": "calculate"},
        {"role": "assistant", "content": None, "tool_calls": ["calculate"]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": "calculate"}]},
    ],
)
def test_what_is_no_assistant_message_is_the_endpoints_failure(said: object) -> None:
    answer = {"choices": [{"message": said, "finish_reason": "stop"}], "usage": {"completion_tokens": 1}}
    with pytest.raises(GatewayError, match="http://e answered no"):
        completion(answer, "http://e")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("context_length_exceeded", "too long"),
        (400, "This model's maximum context length is 2048 tokens. However, you requested 2100 tokens."),  # vLLM
        (400, "the request exceeds the available context size. try increasing the context size"),  # llama.cpp
    ],
)
async def test_a_conversation_that_outgrew_the_endpoints_context_is_the_policys_doing(
    code: str | int, message: str
) -> None:
    async with serving(OpenAIEndpoint(reference)) as endpoint:
        endpoint.refuse_with = (code, message)
        client = gateway(endpoint, MemoryStore())
        episode = await play(client)
        await client.close()
    assert episode.stop_reason == StopReason.CONTEXT


async def test_a_program_that_went_on_without_an_answer_is_not_judged_by_what_it_made_of_that() -> None:
    class Stubborn(Program):
        async def run(self, task: Task, policy: Policy) -> float:
            try:
                await policy.chat([user("Hello")])
            except GatewayError:
                return 0.0
            return 1.0

    async with serving(OpenAIEndpoint(reference)) as endpoint:
        endpoint.fail_with = 500
        client = gateway(endpoint, MemoryStore())
        host = ProgramHost(Stubborn, {}, name="stubborn", timeout_s=30, hung=HungCalls())
        episode = await run_program(host, Task(id="t"), client, limits=Limits(), sampling=Sampling(), mode="eval")
        await client.close()
    assert (episode.reward, episode.stop_reason) == (None, StopReason.POLICY_ERROR)


async def test_a_wrong_key_is_told_before_the_first_episode() -> None:
    async with serving(OpenAIEndpoint(reference, key="secret")) as endpoint:
        client = gateway(endpoint, MemoryStore(), "guess")
        with pytest.raises(ConfigError, match=r"does not answer for model 'm': .* answered 401: wrong key"):
            await client.check()
        await client.close()


async def test_an_endpoint_that_is_not_there_is_told_before_the_first_episode() -> None:
    client = EndpointGateway(
        "http://127.0.0.1:9/v1", model="m", api_key=None, config=RolloutConfig(max_attempts=1), sink=MemoryStore()
    )
    with pytest.raises(ConfigError, match=r"cannot reach http://127\.0\.0\.1:9/v1/chat/completions"):
        await client.check()
    await client.close()
