"""The run's rollout workers, each an actor that plays many episodes at once."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.cluster.actors import RolloutActor
from agentrl.cluster.parts.actor import Actor
from agentrl.cluster.parts.setting import Setting
from agentrl.cluster.ray_session import actor_class
from agentrl.cluster.rollouts import EndGroup, RayRollouts, Worker
from agentrl.env import registry
from agentrl.errors import RunError

MANY_CALLS = 10_000  # Ray's cap on concurrent calls of an async actor; our own caps are lower


class RolloutWorkers:
    """`start`, then `port`, which is the loop's, and `parts`, which are the supervisor's.

    `key` opens their sessions at the gateway. Their names begin with `name`.
    """

    port: RayRollouts

    def __init__(self, setting: Setting, *, key: str, count: int, name: str = "rollout") -> None:
        self._setting = setting
        self._key, self._names = key, [f"{name}-{index}" for index in range(count)]
        self.parts: Sequence[WorkerPart] = ()

    @property
    def actors(self) -> list[Any]:
        return [part.actor.handle for part in self.parts]

    def start(self, gateway_url: str, end_group: EndGroup) -> None:
        self.parts = [WorkerPart(name, self._setting, gateway_url, self._key) for name in self._names]
        for part in self.parts:
            part.actor.begin()
        self.port = RayRollouts([Worker(part.name, part.actor.handle) for part in self.parts], end_group=end_group)
        for part in self.parts:
            part.port = self.port

    def kill(self) -> None:
        for part in self.parts:
            part.actor.kill()


class WorkerPart:
    """One worker as the supervisor sees it."""

    port: RayRollouts

    def __init__(self, name: str, setting: Setting, gateway_url: str, key: str) -> None:
        self.name = name
        self.log: Path = setting.logs / "rollout.log"
        self._setting, self._gateway_url, self._key = setting, gateway_url, key
        self._located = False
        self.actor = Actor(name, self._make, probe_timeout_s=setting.config.supervision.probe_timeout_s)

    async def probe(self) -> tuple[bool, bool]:
        running, answered = await self.actor.probe()
        if answered and not self._located:
            with contextlib.suppress(RunError):  # it died since; the next look tells
                await self.actor.located()
                self._located = True
        return running, answered or (running and not self._located)  # its imports take it long

    async def lost(self) -> None:
        """The groups that it has fail once it is ended, and are played by others."""
        await self.port.came(self.name, None)

    async def restart(self) -> None:
        self.actor.kill()
        self._located = False
        self.actor.begin()
        await self.actor.located()
        await self.port.came(self.name, self.actor.handle)

    def _make(self) -> Any:
        setting = self._setting
        environment = setting.config.environment
        return actor_class(RolloutActor, max_concurrency=MANY_CALLS, **setting.site.worker()).remote(
            setting.config.rollout,
            gateway_url=self._gateway_url,
            admin_key=self._key,
            env_kwargs=registry.placed(environment.id, environment.options),
            sources={source.name: registry.placed(source.id, source.options) for source in environment.sources},
            engine_key=setting.site.engine_key,
            logs=setting.logs,
        )
