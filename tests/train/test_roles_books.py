"""Roles from the environment to the books: the real gateway, store and producer, and the checks of the audit."""

from __future__ import annotations

from typing import Any, ClassVar

from calculator_script import MODEL, encode
from twins import TwinScorer

import agentrl
from agentrl.audit.books import Books
from agentrl.audit.trained_once import examine_groups, examine_settlements
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.scripted import ScriptedEngine
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.render import Renderer
from agentrl.gateway.server import GatewayServer
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.worker import RolloutWorker
from agentrl.store.memory import MemoryStore
from agentrl.train.batch import prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.types import Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


class Duel(agentrl.Env):
    """Two trained players and a referee that is only sampled. The players' rewards are on scales of their own."""

    roles: ClassVar[Any] = {"red": agentrl.Role(), "blue": agentrl.Role(), "referee": agentrl.Role(train=False)}
    played: ClassVar[int] = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        type(self).played += 1
        self.number = type(self).played
        self.turn = 0
        return [agentrl.user("red?")], {}

    def step(self, action: agentrl.Message) -> Any:
        self.turn += 1
        if self.turn == 3:
            return [], 0.0, True, False, {"role_rewards": {"red": float(self.number), "blue": -100.0 * self.number}}
        name = ["", "blue", "referee"][self.turn]
        return [agentrl.user(f"{name}?")], 0.0, False, False, {"role": name}


async def test_each_trained_role_is_trained_once_against_its_own_kind_and_the_sampled_one_never() -> None:
    """Two attempts: red earns 1 and 2, blue -100 and -200, so the advantages of each are ±0.7071."""
    store, Duel.played = MemoryStore(), 0
    async with ScriptedEngine(lambda *_: encode("my move")) as engine:
        server = GatewayServer(
            GatewayConfig(engine_urls=(engine.url,)), renderer=Renderer.load(MODEL), engine_factory=HttpEngineClient,
            sink=store,
        )  # fmt: skip
        worker = RolloutWorker(RolloutConfig(concurrency=1), await server.start(), server.admin_key)
        staleness = StalenessConfig()
        producer = GroupProducer(
            tasks=iter([Task(id="t", env_id=f"{__name__}:Duel")]), rollouts=worker, scorer=TwinScorer(), store=store,
            loop=LoopConfig(steps=1, groups_per_step=1), staleness=staleness, group_size=2,
        )  # fmt: skip
        try:
            async with producer:
                groups = await producer.take(1)
                prepared = prepare_batch(
                    groups, version=0, staleness=staleness, algorithm=AlgorithmConfig(), estimate=group_advantages
                )
                producer.version = 1
                producer.settle(prepared.settlements, step=1)
        finally:
            await worker.close()
            await server.stop()

    stored = {trajectory.session_id: trajectory for trajectory in store.iterate()}
    assert sorted((found.metadata["role"], found.mode) for found in stored.values()) == [
        *[("blue", "train")] * 2, *[("red", "train")] * 2, *[("referee", "eval")] * 2,
    ]  # fmt: skip
    advantages: dict[tuple[str, float | None], float] = {}
    for row in prepared.batch.rows:
        found = stored[row.session_id]
        advantages[found.metadata["role"], found.reward] = round(max(row.advantages, key=abs), 4)
    assert advantages == {
        ("red", 1.0): -0.7071,
        ("red", 2.0): 0.7071,
        ("blue", -100.0): 0.7071,
        ("blue", -200.0): -0.7071,
    }

    books = Books(list(store.settlements()), {group.group_id: group for group in store.groups()}, True, 1)
    for found in stored.values():
        books.add(found)
    assert (examine_settlements(books).items, examine_groups(books).items) == (4, 1)
    assert examine_settlements(books).findings + examine_groups(books).findings == []
