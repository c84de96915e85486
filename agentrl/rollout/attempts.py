"""Plays a task once, whatever its id names: an environment or an agent program."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from agentrl.env import registry
from agentrl.env.program import Program
from agentrl.env.roles import Role
from agentrl.env.threads import CallThread, HungCalls
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.episode import run_episode
from agentrl.rollout.group_score import score_group
from agentrl.rollout.hosts.choice import EnvHosts
from agentrl.rollout.ports import Gateway
from agentrl.rollout.program import run_program
from agentrl.rollout.program_host import ProgramHost
from agentrl.types import Episode, Group, Limits, Mode, Task


class Kind(Struct, frozen=True):
    """What the class behind an id says of its episodes."""

    program: type[Program] | None = None
    limits: Limits = Limits()
    roles: Mapping[str, Role] = {}
    score_group: Callable[..., Any] | None = None


class Attempts:
    """Plays single attempts. What it learns of an id's class it keeps."""

    def __init__(
        self,
        config: RolloutConfig,
        env_kwargs: Mapping[str, Any],
        hosts: EnvHosts,
        gateway: Gateway,
        sources: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`sources`: by the name of a task's source, what its constructor is given instead of `env_kwargs`."""
        self._config = config
        self._env_kwargs = dict(env_kwargs)
        self._sources = dict(sources or {})
        self._hosts = hosts
        self._gateway = gateway
        self._hung = HungCalls(config.max_hung_calls)
        self._kinds: dict[str, Kind] = {}
        self._looking = asyncio.Lock()

    async def play(self, task: Task, *, mode: Mode, metadata: Mapping[str, Any]) -> Episode:
        """One episode; with several roles, `Episode.others` has those of all but the first."""
        kind = await self._kind(task.env_id)
        shared: dict[str, Any] = {
            "limits": self._config.limits().tighter(kind.limits).tighter(task.limits),
            "sampling": self._config.sampling(mode),
            "mode": mode,
            "metadata": metadata,
            "roles": kind.roles,
        }
        kwargs = self._sources.get(task.source, self._env_kwargs)
        if kind.program is None:
            return await run_episode(await self._hosts.host(task.env_id, kwargs), task, self._gateway, **shared)
        host = ProgramHost(
            kind.program, kwargs, name=task.env_id, timeout_s=self._config.env_timeout_s, hung=self._hung
        )
        return await run_program(host, task, self._gateway, **shared)

    async def score(self, group: Group) -> None:
        """Lets the environment score the finished group as a whole, if it wants to."""
        kind = await self._kind(group.task.env_id)
        if kind.score_group is not None:
            await score_group(
                kind.score_group, group, self._gateway, timeout_s=self._config.env_timeout_s, hung=self._hung
            )

    async def _kind(self, env_id: str) -> Kind:
        """What cannot be had counts as an environment: making it says what is wrong, in its own episode."""
        async with self._looking:
            if env_id not in self._kinds:
                thread = CallThread("agentrl-env-class", self._hung)
                try:
                    self._kinds[env_id] = await thread.run(lambda: _kind(env_id), self._config.env_timeout_s, env_id)
                except Exception:
                    return Kind()
                finally:
                    thread.close()
            return self._kinds[env_id]


def _kind(env_id: str) -> Kind:
    described = registry.described(env_id)
    return Kind(
        program=registry.program(env_id),
        limits=registry.limits_of(env_id),
        roles=registry.roles_of(env_id),
        score_group=getattr(described, "score_group", None),
    )


async def probe_program(task: Task, kwargs: Mapping[str, Any], config: RolloutConfig) -> bool:
    """Makes the task's program and closes it. False where the task is not a program's. Raises AgentRLError."""
    program = registry.program(task.env_id)
    if program is None:
        return False
    hung = HungCalls(config.max_hung_calls)
    host = ProgramHost(program, kwargs, name=task.env_id, timeout_s=config.env_timeout_s, hung=hung)
    try:
        await host.make()
    finally:
        await host.close()
    return True
