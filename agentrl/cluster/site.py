"""Where the parts of one run are started: on this machine, or at their reserved places of a cluster."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from pathlib import Path

from agentrl.cluster import nodes
from agentrl.cluster.placement import Plan, plan
from agentrl.cluster.reservation import Options, Reservation, reserve
from agentrl.engine.launch import LOOPBACK
from agentrl.errors import ConfigError, RunError
from agentrl.train.cluster_config import ClusterConfig

logger = logging.getLogger(__name__)


class Site:
    """`open` with Ray there, then options for every actor, then `close`. Before, and where nothing is reserved, options
    are empty: everybody shares the one machine.

    The gateway is on the driver's node, beside the store.
    """

    def __init__(self, cluster: ClusterConfig | None = None) -> None:
        self._cluster = cluster or ClusterConfig()
        self._addresses: Mapping[str, str] = {}  # of the nodes by Ray's id
        self._driver = ""  # Ray's id of the driver's node
        self._reservation = Reservation(Plan((), (), ()), ())
        self._devices: Mapping[int, str] = {}  # of a rank that uses a GPU of its engine's
        self.engine_key: str | None = None  # opens the engines, where they are on a network

    async def open(self, *, engines: int, gpus_each: int, ranks: int, cpus_only: bool) -> None:
        """Raises RunError when Ray has not what the run needs, naming what is missing."""
        import ray

        living = [node for node in ray.nodes() if node["Alive"]]
        gpus = not cpus_only and any(node["Resources"].get("GPU") for node in living)
        planned = plan(self._cluster, engines=engines, gpus_each=gpus_each, ranks=ranks, gpus=gpus)
        self._addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in living}
        self._driver = ray.get_runtime_context().get_node_id()
        self.engine_key = secrets.token_urlsafe(32) if self.several else None
        limit_s = self._cluster.placement_timeout_s
        self._reservation = await reserve(planned, self._addresses, timeout_s=limit_s)
        self._devices = await self._reservation.lent_devices()

    @property
    def several(self) -> bool:
        """Whether there are nodes that do not reach each other's loopback."""
        return self._cluster.ray_address is not None and len(self._addresses) > 1

    @property
    def host(self) -> str:
        """Where a server on the driver's node listens, for those who have to reach it."""
        return self._addresses[self._driver] if self.several else LOOPBACK

    def engine(self, index: int) -> Options:
        seats = self._reservation.planned.engines
        return self._reservation.options(seats[index]) if seats else {}

    def rank(self, index: int) -> Options:
        seats = self._reservation.planned.ranks
        return self._reservation.options(seats[index]) if seats else {}

    def device(self, rank: int) -> str | None:
        """The GPU that a rank has to take, where Ray gives it none of its own."""
        return self._devices.get(rank)

    def first_rank(self) -> str:
        """The address at which trainer ranks meet: of the first one's node."""
        seats = self._reservation.planned.ranks
        node = self._reservation.node_of(seats[0]) if self.several and seats else None
        return self.host if node is None else self._addresses.get(node, self.host)

    def beside_the_driver(self) -> Options:
        if not self.several:
            return {}
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(self._driver, soft=False)}

    def worker(self) -> Options:
        """Of a rollout worker."""
        if self.several and self._cluster.rollout_workers == "spread":
            return {"scheduling_strategy": "SPREAD"}
        return self.beside_the_driver()

    async def check(self, *, model: Path, run: Path) -> None:
        """Raises ConfigError for what the run's nodes do not see, with the fix; RunError for one without agentrl."""
        if not self.several:
            return
        others = {self._addresses[node]: node for node in self._reservation.nodes() if node != self._driver}
        marker = nodes.marker(run)
        try:
            views = await asyncio.to_thread(nodes.ask, others, [str(model), str(marker)])
        except Exception as error:
            raise RunError(f"a node of the cluster cannot run agentrl: {error}") from error
        finally:
            marker.unlink(missing_ok=True)
        seats = self._reservation.planned.ranks
        writers = {self._addresses[node] for seat in seats if (node := self._reservation.node_of(seat))}
        wrong = nodes.unusable(views, nodes.look([]), model=str(model), run=str(marker), writers=writers)
        if wrong:
            raise ConfigError("; ".join(wrong))
        if alone := [address for address, view in views.items() if str(marker) in view.missing]:
            logger.info("logs of processes on %s are under %s there: it is not shared", ", ".join(alone), run / "logs")

    async def close(self, weights: Path) -> None:
        """Gives back what was reserved, and removes `weights` on other nodes. Never fails."""
        if self.several:
            living = [node for node in self._reservation.nodes() if node != self._driver]
            await asyncio.to_thread(nodes.forget, living, weights)
        self.release()

    def release(self) -> None:
        """Gives back what was reserved. Never fails."""
        self._reservation.release()
