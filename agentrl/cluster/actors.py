"""The processes of a run as Ray actors: thin shells that give a plain class a process, a log file and nothing else."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentrl import plugins
from agentrl.cluster.logs import log_to
from agentrl.engine.config import EngineConfig, EngineTimeouts
from agentrl.gateway.config import GatewayConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.types import Group, Mode, Task

logger = logging.getLogger(__name__)


class EngineActor:
    """Supervises one vLLM server."""

    def __init__(self, model: str, config: EngineConfig, *, logs: Path, weights: Path, index: int) -> None:
        log_to(logs / f"engine-{index}-actor.log")
        from agentrl.engine.replica import EngineReplica

        self._replica = EngineReplica(model, config, logs_dir=logs, weights_dir=weights, index=index)

    def start(self) -> str:
        return self._replica.start(lambda line: logger.info("%s", line))

    def probe(self) -> tuple[bool, bool]:
        """Whether the server's process runs, and whether it answers."""
        return self._replica.running(), self._replica.alive()

    def stop(self) -> None:
        self._replica.stop()


class GatewayActor:
    """Serves the gateway from a thread of its own: Ray's event loops are not the quickest."""

    def __init__(
        self,
        config: GatewayConfig,
        *,
        tokenizer: str,
        admin_key: str,
        store_url: str,
        timeouts: EngineTimeouts,
        logs: Path,
    ) -> None:
        log_to(logs / "gateway.log")
        self._config = config
        self._tokenizer = tokenizer
        self._admin_key = admin_key
        self._store_url = store_url
        self._timeouts = timeouts
        self._serving: Any = None

    def start(self) -> str:
        from agentrl.engine.client import HttpEngineClient
        from agentrl.gateway.process import favour_the_event_loop
        from agentrl.gateway.render import Renderer
        from agentrl.gateway.server import GatewayServer
        from agentrl.gateway.thread import GatewayThread
        from agentrl.store.sql import SqlStore

        server = GatewayServer(
            self._config,
            renderer=Renderer.load(Path(self._tokenizer)),
            engine_factory=partial(HttpEngineClient, timeouts=self._timeouts),
            admin_key=self._admin_key,
            sink=SqlStore(self._store_url),
        )
        self._serving = GatewayThread(server)
        url: str = self._serving.start()
        favour_the_event_loop()
        return url

    def probe(self) -> tuple[bool, bool]:
        """Whether its server and its background tasks run. Raises what one of them died of."""
        if self._serving is not None:
            self._serving.check()
        return True, True

    def stop(self) -> None:
        if self._serving is not None:
            self._serving.stop()


class RolloutActor:
    """Runs episodes, many at a time."""

    def __init__(
        self, config: RolloutConfig, *, gateway_url: str, admin_key: str, env_kwargs: dict[str, Any], logs: Path
    ) -> None:
        log_to(logs / "rollout.log")
        from agentrl.rollout.worker import RolloutWorker

        self._worker = RolloutWorker(config, gateway_url, admin_key, env_kwargs=env_kwargs)

    async def run_group(self, group_id: str, task: Task, *, size: int, version: int, mode: Mode) -> Group:
        return await self._worker.run_group(group_id, task, size=size, version=version, mode=mode)

    async def probe(self) -> tuple[bool, bool]:
        return True, True

    async def stop(self) -> None:
        await self._worker.close()


class TrainerActor:
    """One trainer rank of the kind that the run names."""

    def __init__(
        self,
        kind: str,
        config: BaseModel,
        *,
        rank: int,
        world_size: int,
        model: str,
        total_steps: int,
        logs: Path,
    ) -> None:
        log_to(logs / f"trainer-{rank}.log")
        make = plugins.load("agentrl.trainers", kind)
        self._rank = make(rank, world_size, "127.0.0.1", 0, model, config, total_steps)

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._rank, method)(*args)
