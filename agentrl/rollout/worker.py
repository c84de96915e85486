"""Runs many episodes at once against one gateway. A plain class: a run wraps it in a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.env.threads import take_short_turns
from agentrl.errors import AgentRLError
from agentrl.rollout.attempts import Attempts, probe_program
from agentrl.rollout.client import HttpGateway
from agentrl.rollout.completeness import Completeness
from agentrl.rollout.concurrency import Concurrency, LoadSource
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.group import run_group
from agentrl.rollout.hosts.choice import EnvHosts
from agentrl.rollout.load import EngineLoad
from agentrl.rollout.ports import Gateway
from agentrl.types import Episode, Group, Mode, Task

log = logging.getLogger(__name__)


class RolloutWorker:
    """At most `config.concurrency` episodes at once, or fewer by the engines' load (`config.adaptive`), each with an
    environment made for it and closed after.

    An episode that a failure ended is played again (`config.episode_retries`, `config.retry_on`), in a new session.
    """

    def __init__(
        self,
        config: RolloutConfig,
        gateway_url: str,
        admin_key: str,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        gateway: Gateway | None = None,
        sources: Mapping[str, Mapping[str, Any]] | None = None,
        engine_key: str | None = None,
        load: LoadSource | None = None,
    ) -> None:
        """`env_kwargs` go to the environment's constructor, or those of the task's source where `sources` has them.

        `engine_key` opens the engines' metrics. `gateway` and `load` replace what is at `gateway_url` (twins).
        """
        take_short_turns()
        self._config = config
        self._hosts = EnvHosts(config, env_kwargs or {})
        self._gateway = gateway or HttpGateway(gateway_url, admin_key, config)
        self._attempts = Attempts(config, env_kwargs or {}, self._hosts, self._gateway, sources)
        self._concurrency = Concurrency(config, load or EngineLoad(gateway_url, admin_key, engine_key))

    async def run_group(
        self,
        group_id: str,
        task: Task,
        *,
        size: int | None = None,
        version: int,
        mode: Mode = "train",
        have: Mapping[int, Episode] | None = None,
    ) -> Group:
        """The episodes of one group, `config.group_size` of them unless told otherwise.

        Those that we `have`, by their index, are not played; the environment scores the group with them.
        """
        retried: list[Episode] = []
        self._concurrency.start()

        def play(index: int) -> Any:
            return self._episode(task, mode, {"group_id": group_id, "index": index}, retried)

        group = await run_group(
            group_id,
            task,
            size=size or self._config.group_size,
            version=version,
            play=play,
            have=have,
            completeness=Completeness.of(self._config) if mode == "train" else None,
        )
        group = msgspec.structs.replace(group, retried=retried + group.retried, concurrency=self._concurrency.stats())
        await self._attempts.score(group)
        return group

    async def run_episodes(self, tasks: Sequence[Task], *, mode: Mode = "eval") -> list[Episode]:
        """One episode of each task, in the tasks' order."""
        return await asyncio.gather(*(self._episode(task, mode, {"index": i}, []) for i, task in enumerate(tasks)))

    async def close(self) -> None:
        """Returns when no environment's process is left."""
        await self._concurrency.close()
        await self._hosts.close()
        await self._gateway.close()

    async def _episode(self, task: Task, mode: Mode, metadata: dict[str, Any], retried: list[Episode]) -> Episode:
        """The attempt that counts; the failed ones before it are added to `retried`."""
        async with self._concurrency.slots:
            for attempt in range(self._config.episode_retries):
                episode = await self._attempt(task, mode, metadata, attempt)
                if episode.stop_reason not in self._config.retry_on:
                    return episode
                log.warning(
                    "task %s: %s, so it is played again (%d of %d)",
                    task.id, episode.stop_reason, attempt + 1, self._config.episode_retries,
                )  # fmt: skip
                retried.append(msgspec.structs.replace(episode, messages=[]))
            return await self._attempt(task, mode, metadata, self._config.episode_retries)

    async def _attempt(self, task: Task, mode: Mode, metadata: dict[str, Any], attempt: int) -> Episode:
        return await self._attempts.play(
            task, mode=mode, metadata=metadata | {"attempt": attempt} if attempt else metadata
        )


async def probe(task: Task, env_kwargs: Mapping[str, Any] | None = None, config: RolloutConfig | None = None) -> None:
    """Makes the task's environment, resets it and closes it, where the run would have it: what a run checks before it
    starts anything else.

    Raises ConfigError for an id that names nothing, EnvironmentFault (in one sentence) for an environment that fails.
    """
    if await probe_program(task, env_kwargs or {}, config or RolloutConfig()):
        return
    hosts = EnvHosts(config or RolloutConfig(), env_kwargs or {})
    try:
        env = await hosts.host(task.env_id)
        try:
            await env.reset(task)
            await env.tools()
        except AgentRLError:
            with contextlib.suppress(AgentRLError):  # the first fault is the one to tell
                await env.close()
            raise
        await env.close()
    finally:
        await hosts.close()
