"""The data path without a model: environment, rollout, the real gateway over HTTP, a scripted engine, the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from calculator_script import MODEL, encode, solve

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import Fault, ScriptedEngine
from agentrl.env import registry
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.types import Task
from agentrl_envs.calculator.tasks import problem


@asynccontextmanager
async def stack(engine: ScriptedEngine, config: RolloutConfig) -> AsyncIterator[tuple[RolloutWorker, MemoryStore]]:
    store = MemoryStore()
    server = GatewayServer(
        GatewayConfig(engine_urls=(engine.url,)),
        renderer=Renderer.load(MODEL),
        engine_factory=HttpEngineClient,
        sink=store,
    )
    worker = RolloutWorker(config, await server.start(), server.admin_key)
    try:
        yield worker, store
    finally:
        await worker.close()
        await server.stop()


def tasks(count: int, split: str = "train") -> list[Task]:
    return list(registry.tasks("agentrl/Calculator-v0", split=split, seed=0, count=count))


async def test_a_group_solves_its_task_and_every_episode_is_durable_with_its_tokens() -> None:
    (task,) = tasks(1)
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig(group_size=4)) as (worker, store):
        group = await worker.run_group("g0", task, version=0)
        assert [(episode.stop_reason, episode.reward, episode.turns) for episode in group.episodes] == [
            ("done", 1.0, 2)
        ] * 4
        saved = {trajectory.session_id: trajectory for trajectory in store.iterate(group_id="g0")}
        assert saved.keys() == {episode.session_id for episode in group.episodes}
        answer = encode(str(problem(task.seed).answer))
        for trajectory in saved.values():
            assert (trajectory.reward, trajectory.components, trajectory.stop_reason) == (1.0, {"env": 1.0}, "done")
            (row,) = trajectory.rows
            sampled = [token for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
            assert sampled == [*trajectory.calls[0].token_ids, *answer]


async def test_evaluation_sessions_are_marked_as_such() -> None:
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig()) as (worker, store):
        episodes = await worker.run_episodes(tasks(3, "eval"))
        assert [episode.reward for episode in episodes] == [1.0] * 3
        assert store.count(mode="eval") == 3
        assert store.count(mode="train") == 0


async def test_256_episodes_are_256_requests_at_the_engine_at_once() -> None:
    """Case 83: no pool in between queues them."""
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig(concurrency=256)) as (worker, _):
        engine.hold()
        running = asyncio.create_task(worker.run_episodes(tasks(256), mode="train"))
        await engine.until(lambda: len(engine.requests) == 256)
        engine.release()
        episodes = await running
        assert [episode.reward for episode in episodes] == [1.0] * 256


async def test_a_prompt_that_outgrows_the_context_ends_the_episode_cleanly() -> None:
    async with ScriptedEngine(solve, max_model_len=8) as engine, stack(engine, RolloutConfig()) as (worker, store):
        (episode,) = await worker.run_episodes(tasks(1))
        assert (episode.stop_reason, episode.reward) == ("context_overflow", None)
        assert store.get(episode.session_id).stop_reason == "context_overflow"


async def test_an_outage_of_the_engines_costs_no_turn_and_no_reward() -> None:
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig(max_turns=2)) as (worker, store):
        engine.fail_next(*[Fault(kind="refuse")] * 3)
        (episode,) = await worker.run_episodes(tasks(1))
        assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 2)
        assert store.get(episode.session_id).reward == 1.0


async def test_the_token_limit_cuts_the_message_and_the_episode_goes_on() -> None:
    config = RolloutConfig(max_tokens=3, max_turns=1)
    async with ScriptedEngine(solve) as engine, stack(engine, config) as (worker, store):
        (episode,) = await worker.run_episodes(tasks(1))
        (call,) = store.get(episode.session_id).calls
        assert (len(call.token_ids), call.finish_reason) == (3, "length")
        assert (episode.stop_reason, episode.reward) == ("done", 0.0)
