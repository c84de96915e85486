"""Which host an environment gets: what the run says, else what its class wishes for."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from agentrl.env import registry
from agentrl.env.base import Isolation
from agentrl.env.isolated.wire import Caps
from agentrl.env.threads import CallThread, HungCalls
from agentrl.errors import ConfigError
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.hosts.base import EnvHost
from agentrl.rollout.hosts.nursery import Nursery
from agentrl.rollout.hosts.process import ProcessHost
from agentrl.rollout.hosts.thread import ThreadHost


class EnvHosts:
    """Gives each episode its host. Holds a nursery for each id whose environments live in processes."""

    def __init__(self, config: RolloutConfig, env_kwargs: Mapping[str, Any]) -> None:
        self._config = config
        self._env_kwargs = dict(env_kwargs)
        self._hung = HungCalls(config.max_hung_calls)
        self._caps = Caps(memory_bytes=config.env_memory_mb * 2**20, processes=config.env_processes)
        self._nurseries: dict[str, Nursery] = {}
        self._wishes: dict[str, Isolation] = {}

    async def host(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> EnvHost:
        """`env_kwargs`: other ones than usual for the constructor."""
        kwargs = self._env_kwargs if env_kwargs is None else dict(env_kwargs)
        isolation = self._config.isolation
        timeout_s = self._config.env_timeout_s
        if isolation == "auto":
            isolation = await self._wish(env_id)
        if isolation == "thread":
            make = functools.partial(registry.make, env_id, **kwargs)
            return ThreadHost(make, name=env_id, timeout_s=timeout_s, hung=self._hung)
        nursery = self._nurseries.setdefault(env_id, Nursery(env_id, self._caps))
        return ProcessHost(nursery, kwargs, name=env_id, timeout_s=timeout_s, memory_mb=self._config.env_memory_mb)

    async def close(self) -> None:
        """Returns when no environment's process is left."""
        await asyncio.gather(*(nursery.close() for nursery in self._nurseries.values()))

    async def _wish(self, env_id: str) -> Isolation:
        """Of its class. One that cannot be had is left to the thread, where the episode says what is wrong."""
        if env_id not in self._wishes:
            thread = CallThread("agentrl-env-class", self._hung)
            try:
                made = await thread.run(lambda: registry.env_class(env_id), self._config.env_timeout_s, env_id)
            except (Exception, SystemExit):
                return "thread"
            finally:
                thread.close()
            wish: Isolation = getattr(made, "isolation", "thread")
            if wish not in ("thread", "process"):
                raise ConfigError(f"{env_id}.isolation is {wish!r}; it is 'thread' or 'process'")
            self._wishes[env_id] = wish
        return self._wishes[env_id]
