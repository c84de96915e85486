"""The processes of a run as Ray actors: thin shells that give a plain class a process, a log file and nothing else."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentrl import plugins
from agentrl.cluster.carriers import Shelf
from agentrl.cluster.logs import log_to
from agentrl.cluster.nodes import interface_of, node_address
from agentrl.cluster.processes import yield_cores
from agentrl.engine.config import EngineConfig, EngineTimeouts
from agentrl.engine.launch import LOOPBACK, cpu_only
from agentrl.errors import RunError
from agentrl.gateway.config import GatewayConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.types import Episode, Group, Mode, Task

logger = logging.getLogger(__name__)


class Placed:
    """Says where it runs, so that it can be ended there whatever it is doing."""

    def place(self) -> tuple[str, int]:
        """Ray's name of the machine, and the process id."""
        import ray

        return str(ray.get_runtime_context().get_node_id()), os.getpid()


class EngineActor(Placed, Shelf):
    """Supervises one vLLM server, and puts down weights for those of its machine."""

    def __init__(
        self,
        model: str,
        config: EngineConfig,
        *,
        logs: Path,
        weights: Path,
        index: int,
        adapter_rank: int = 0,
        key: str | None = None,
    ) -> None:
        """With a `key`, its server listens on the node's address and wants the key for everything."""
        log_to(logs / f"engine-{index}-actor.log")
        from agentrl.engine.replica import EngineReplica

        self._replica = EngineReplica(
            model,
            config,
            logs_dir=logs,
            weights_dir=weights,
            index=index,
            adapter_rank=adapter_rank,
            host=LOOPBACK if key is None else node_address(),
            key=key,
        )

    def start(self) -> str:
        return self._replica.start(lambda line: logger.info("%s", line))

    def restart(self) -> str:
        """Kills the server and all that it started, and starts another one."""
        self._replica.kill()
        return self.start()

    def probe(self) -> tuple[bool, bool]:
        """Whether the server's process runs, and whether it answers."""
        return self._replica.running(), self._replica.alive()

    def stop(self) -> None:
        self._replica.stop()


class GatewayActor(Placed):
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
        adapter: str | None = None,
        engine_key: str | None = None,
    ) -> None:
        """adapter: the name of the one that the engines are to sample with. engine_key: what opens all of them."""
        log_to(logs / "gateway.log")
        self._adapter, self._engine_key = adapter, engine_key
        self._config = config
        self._tokenizer = tokenizer
        self._admin_key = admin_key
        self._store_url = store_url
        self._timeouts = timeouts
        self._serving: Any = None

    def start(self) -> str:
        from agentrl.engine.keyed import engine_clients
        from agentrl.gateway.process import favour_the_event_loop
        from agentrl.gateway.render import Renderer
        from agentrl.gateway.server import GatewayServer
        from agentrl.gateway.thread import GatewayThread
        from agentrl.store.sql import SqlStore

        server = GatewayServer(
            self._config,
            renderer=Renderer.load(Path(self._tokenizer)),
            engine_factory=engine_clients(
                self._config.engine_urls,
                self._config.engine_key_env,
                timeouts=self._timeouts,
                model=self._adapter,
                run_key=self._engine_key,
            ),
            admin_key=self._admin_key,
            sink=SqlStore(self._store_url),
        )
        self._serving = GatewayThread(server)
        url: str = self._serving.start()
        favour_the_event_loop()
        return url

    def end_group(self, group_id: str, stop_reason: str) -> list[str]:
        """Finishes the group's open sessions; the ids of those that have calls. Raises RunError when it could not."""
        from agentrl.gateway.refusal import Refusal

        try:
            ended: list[str] = self._serving.run(lambda server: server.gateway.finish_group(group_id, stop_reason))
        except Refusal as refusal:
            raise RunError(f"sessions of group {group_id} could not be ended: {refusal}") from refusal
        return ended

    def probe(self) -> tuple[bool, bool]:
        """Whether its server and its background tasks run. Raises what one of them died of."""
        if self._serving is not None:
            self._serving.check()
        return True, True

    def stop(self) -> None:
        if self._serving is not None:
            self._serving.stop()


class RolloutActor(Placed):
    """Runs episodes, many at a time."""

    def __init__(
        self,
        config: RolloutConfig,
        *,
        gateway_url: str,
        admin_key: str,
        env_kwargs: dict[str, Any],
        sources: dict[str, dict[str, Any]],
        engine_key: str | None,
        logs: Path,
    ) -> None:
        log_to(logs / "rollout.log")
        from agentrl.rollout.worker import RolloutWorker

        self._worker = RolloutWorker(
            config, gateway_url, admin_key, env_kwargs=env_kwargs, sources=sources, engine_key=engine_key
        )

    async def run_group(
        self,
        group_id: str,
        task: Task,
        *,
        size: int,
        version: int,
        mode: Mode,
        have: dict[int, Episode] | None = None,
    ) -> Group:
        return await self._worker.run_group(group_id, task, size=size, version=version, mode=mode, have=have)

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
        address: str = LOOPBACK,
        device: str | None = None,
    ) -> None:
        """address: of the node where the ranks meet. device: the GPU to take, where Ray gives none."""
        log_to(logs / f"trainer-{rank}.log")
        if cpu_only():
            yield_cores()  # before its libraries start their threads
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = device
        if address != LOOPBACK:
            name = interface_of(node_address())
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # its own guess goes by the host's name
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
        make = plugins.load("agentrl.trainers", kind)
        self._rank = make(rank, world_size, address, 0, model, config, total_steps)

    def alive(self) -> bool:
        return True

    def call(self, method: str, *args: Any) -> Any:
        return getattr(self._rank, method)(*args)
