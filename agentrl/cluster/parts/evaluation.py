"""Engines that only evaluate, and the worker that plays there.

At the gateway they are those of a run with a key of its own: no call of training is sent to them, and none of an
evaluation to the others. One that dies costs its evaluation; it is started again, and takes part in the next.
"""

from __future__ import annotations

from typing import Any

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.cluster.parts.engines import EnginePart, Engines
from agentrl.cluster.parts.rollouts import RolloutWorkers
from agentrl.cluster.parts.setting import Setting
from agentrl.cluster.rollouts import EndGroup, RayRollouts
from agentrl.cluster.supervisor import Part
from agentrl.gateway.keys import run_key
from agentrl.train.ports import Trainer
from agentrl.train.publish import GroupPublisher

RUN = "evaluation"
"""What the gateway calls them."""


class EvaluationEngines:
    """`start`, then `connect`, then `publish`, which is the loop's, and `rollouts`. Belongs to one event loop."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._key = run_key(setting.admin_key, RUN)
        config = setting.config
        self._engines = Engines(setting, first=config.engine.replicas, count=config.evaluation.replicas)
        self._workers = RolloutWorkers(setting, key=self._key, count=1, name="rollout-evaluation")
        self._routing: GatewayEngines | None = None
        self._fleet: EngineFleet | None = None
        self._publisher: GroupPublisher | None = None

    @property
    def actors(self) -> list[Any]:
        return [*self._workers.actors, *self._engines.actors]

    @property
    def engines(self) -> list[EnginePart]:
        return self._engines.parts

    @property
    def parts(self) -> list[Part]:
        """The supervisor's."""
        return [*self._engines.parts, *self._workers.parts]

    @property
    def fleet(self) -> EngineFleet:
        assert self._fleet is not None, "connect() comes first"
        return self._fleet

    @property
    def rollouts(self) -> RayRollouts:
        return self._workers.port

    async def start(self) -> None:
        """Raises an AgentRLError when an engine does not come up."""
        await self._engines.start()

    async def connect(self, gateway_url: str, trainer: Trainer, end_group: EndGroup) -> None:
        """Puts them behind the gateway, and gives them to who publishes."""
        self._workers.start(gateway_url, end_group)
        self._routing = GatewayEngines(gateway_url, self._key, patience_s=self._setting.patience_s)
        self._fleet = self._engines.fleet(self._routing, alone=True)
        await self._fleet.register()
        self._publisher = GroupPublisher(trainer=trainer, engines=self._fleet, attempts=1)

    async def publish(self, version: int) -> dict[str, float]:
        """To all that are up. Raises SwapError when none took it, TrainerError when the trainer could not give it."""
        assert self._publisher is not None, "connect() comes first"
        return await self._publisher.publish(version)

    def kill(self) -> None:
        self._engines.kill()
        self._workers.kill()

    async def close(self) -> None:
        if self._fleet is not None:
            await self._fleet.close()
        if self._routing is not None:
            await self._routing.close()
