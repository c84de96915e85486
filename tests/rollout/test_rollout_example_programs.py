"""`examples/04_agent_programs`: each agent solves a problem against the real gateway, token for token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from calculator_script import MODEL, encode, solve
from transformers import AutoTokenizer

from agentrl.config import RunConfig, load_run_config
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.env import registry
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.types import Group
from agentrl_envs.calculator.env import Calculator

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "04_agent_programs"
NEEDS = {"shell": "curl", "node": "node", "python": "sh"}


def config_of(name: str) -> RunConfig:
    if shutil.which(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not on this machine")
    return load_run_config(EXAMPLE / f"{name}.toml")


async def play(config: RunConfig, policy: Any, store: MemoryStore, size: int = 2) -> Group:
    env_id, options = config.environment.id, config.environment.options
    (task,) = registry.tasks(env_id, split="train", seed=0, count=1, env_kwargs=options)
    async with ScriptedEngine(policy) as engine:
        server = GatewayServer(
            GatewayConfig(engine_urls=(engine.url,)),
            renderer=Renderer.load(MODEL),
            engine_factory=HttpEngineClient,
            sink=store,
        )
        url = await server.start()
        settings = config.rollout.model_copy(update={"episode_retries": 0})
        worker = RolloutWorker(settings, url, server.admin_key, env_kwargs=registry.placed(env_id, options))
        try:
            return await worker.run_group("g0", task, size=size, version=0)
        finally:
            await worker.close()
            await server.stop()


@pytest.mark.parametrize("name", ["shell", "node", "python"])
async def test_an_agent_calls_its_tool_answers_and_leaves_one_exact_row(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    store = MemoryStore()
    group = await play(config_of(name), solve, store)
    answer = group.task.options["answer"]
    for episode in group.episodes:
        assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 2), episode.error
        saved = store.get(episode.session_id)
        assert saved.components == {"right": 1.0}
        (row,) = saved.rows
        sampled = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
        assert sampled == [*saved.calls[0].token_ids, *encode(answer)]


@pytest.mark.parametrize("name", ["shell", "node", "python"])
async def test_an_agent_is_asked_with_the_very_prompt_of_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that what the embedded policy has learnt is of use: the same tools, the same question."""
    monkeypatch.chdir(ROOT)
    prompts: list[list[int]] = []

    def watching(prompt_ids: Any, sampling: Any, version: int) -> list[int]:
        prompts.append(list(prompt_ids))
        return solve(prompt_ids, sampling, version)

    config = config_of(name)
    group = await play(config, watching, MemoryStore(), size=1)
    template = AutoTokenizer.from_pretrained(MODEL).apply_chat_template(
        [{"role": "user", "content": group.task.options["question"]}],
        tools=Calculator().tools,
        add_generation_prompt=True,
        tokenize=True,
        return_dict=False,
    )
    assert prompts[0] == list(template)


@pytest.mark.parametrize("name", ["shell", "node", "python"])
async def test_a_policy_that_talks_nonsense_costs_nobody_an_episode(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An untrained policy calls tools wrongly most of the time: the agent goes on, and is graded 0."""
    monkeypatch.chdir(ROOT)
    wrong = ['{"name": "calculate", "arguments": {"expression": "$(id)"}}', '{"name": "calculate", "arguments": {}}']
    turns = [encode(f"<tool_call>\n{call}\n</tool_call>") for call in wrong]
    left = iter([*turns, encode("I do not know")])
    group = await play(config_of(name), lambda *_: next(left), MemoryStore(), size=1)
    (episode,) = group.episodes
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 0.0, 3), episode.error
