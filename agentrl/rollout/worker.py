"""Runs many episodes at once against one gateway. A plain class: a run wraps it in a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.env import registry
from agentrl.env.threads import HungCalls
from agentrl.errors import AgentRLError
from agentrl.rollout.client import HttpGateway
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.env_calls import EnvCalls
from agentrl.rollout.episode import run_episode
from agentrl.rollout.group import run_group
from agentrl.rollout.ports import Gateway
from agentrl.types import Episode, Group, Mode, Task


class RolloutWorker:
    """At most `config.concurrency` episodes at once, each with an environment made for it and closed after."""

    def __init__(
        self,
        config: RolloutConfig,
        gateway_url: str,
        admin_key: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        gateway: Gateway | None = None,
    ) -> None:
        """`env_kwargs` go to the environment's constructor. `gateway` replaces the one at `gateway_url` (a twin)."""
        self._config = config
        self._env_kwargs = dict(env_kwargs or {})
        self._gateway = gateway or HttpGateway(gateway_url, admin_key, config)
        self._slots = asyncio.Semaphore(config.concurrency)
        self._hung = HungCalls(config.max_hung_calls)

    async def run_group(
        self, group_id: str, task: Task, *, size: int | None = None, version: int, mode: Mode = "train"
    ) -> Group:
        """The episodes of one group, `config.group_size` of them unless told otherwise."""

        def play(index: int) -> Any:
            return self._episode(task, mode, {"group_id": group_id, "index": index})

        return await run_group(group_id, task, size=size or self._config.group_size, version=version, play=play)

    async def run_episodes(self, tasks: Sequence[Task], *, mode: Mode = "eval") -> list[Episode]:
        """One episode of each task, in the tasks' order."""
        return await asyncio.gather(*(self._episode(task, mode, {"index": i}) for i, task in enumerate(tasks)))

    async def close(self) -> None:
        await self._gateway.close()

    async def _episode(self, task: Task, mode: Mode, metadata: dict[str, Any]) -> Episode:
        async with self._slots:
            return await run_episode(
                functools.partial(registry.make, task.env_id, **self._env_kwargs),
                task,
                self._gateway,
                limits=self._config.limits(),
                sampling=self._config.sampling(mode),
                mode=mode,
                metadata=metadata,
                env_timeout_s=self._config.env_timeout_s,
                hung=self._hung,
            )


async def probe(task: Task, env_kwargs: Mapping[str, Any] | None = None, *, timeout_s: float = 60.0) -> None:
    """Makes the task's environment, resets it and closes it: what a run checks before it starts anything else.

    Raises ConfigError for an id that names nothing, EnvironmentFault (in one sentence) for an environment that fails.
    """
    make = functools.partial(registry.make, task.env_id, **dict(env_kwargs or {}))
    env = EnvCalls(make, name=task.env_id, timeout_s=timeout_s, hung=HungCalls())
    try:
        await env.reset(task)
        await env.tools()
    except AgentRLError:
        with contextlib.suppress(AgentRLError):  # the first fault is the one to tell
            await env.close()
        raise
    await env.close()
