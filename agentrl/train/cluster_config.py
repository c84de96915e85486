"""The `[cluster]` table of a run: which machines its processes are on, and what each may take of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, field_validator

from agentrl.section import Section

Strategy = Literal["pack", "spread", "strict_pack", "strict_spread"]


class ClusterConfig(Section):
    """Where engines and trainer ranks are: on this machine, or on the nodes of a Ray cluster (docs/cluster.md)."""

    ray_address: str | None = None
    """A Ray cluster that already runs, joined from one of its nodes: `auto`, or `HOST:PORT` of its head. Without it a
    run starts Ray for itself, on this machine."""

    engines: Strategy = "pack"
    """How engines lie on the nodes: `pack` takes few nodes, `spread` takes many, `strict_pack` exactly one, and
    `strict_spread` one node for each. An engine is never split between nodes."""

    ranks: Strategy = "pack"
    """The same for trainer ranks that have no engine's GPUs."""

    colocated: bool = False
    """Whether trainer ranks share the GPUs of the engines: one rank for each GPU, the first engine's first, and ranks
    beyond them get their own. The engines have to make room while the trainer steps."""

    engine_gpus: NonNegativeInt | None = None
    """GPUs of one engine. When unset, its tensor, pipeline and data parallel sizes in `engine.extra_args` multiplied; 0
    with vLLM for CPUs."""

    engine_cpus: PositiveFloat | None = None
    """CPUs that are reserved for one engine. When unset, 1 on a cluster that is joined; on this machine alone all
    processes share the cores."""

    rank_cpus: PositiveFloat | None = None
    """The same for one trainer rank."""

    engine_resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """More that a node must have for each engine, by the names that its Ray was started with: `{"engine": 1}`,
    `{"accelerator_type:H100": 0.001}`."""

    rank_resources: dict[str, PositiveFloat] = Field(default_factory=dict)
    """The same for each trainer rank: `{"trainer": 1}` keeps ranks on nodes that were started with it."""

    rollout_workers: Literal["driver", "spread"] = "driver"
    """Where episodes are played: on the driver's node, or spread over all nodes, which then need what the environments
    need."""

    working_dir: str | None = None
    """A directory with the user's own code that Ray copies to every node. When unset, the code must be under the same
    path on all of them."""

    placement_timeout_s: PositiveFloat = 60.0
    """How long to wait for Ray to reserve what the run needs, which others may hold."""

    @field_validator("ray_address")
    @classmethod
    def _joined_from_one_of_its_nodes(cls, address: str | None) -> str | None:
        if address is None:
            return None
        if "://" in address:
            raise ValueError(
                "Ray's client has no place on the cluster to serve from; start the run on one of the cluster's nodes "
                "and write `auto`, or HOST:PORT of the head"
            )
        host, colon, port = address.rpartition(":")
        if address != "auto" and not (host and colon and port.isdigit()):
            raise ValueError("is neither `auto` nor HOST:PORT of the head")
        return address

    @field_validator("engine_resources", "rank_resources")
    @classmethod
    def _own_keys_for_processors(cls, resources: dict[str, float]) -> dict[str, float]:
        for name in ("CPU", "GPU", "memory", "object_store_memory"):
            if name in resources:
                raise ValueError(f"{name} is Ray's own; use the keys for GPUs and CPUs, and custom resources here")
        return resources


def joined(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a run file with these tables means where it says nothing else: on a cluster, weights travel."""
    cluster = data.get("cluster")
    if isinstance(cluster, ClusterConfig):
        address = cluster.ray_address
    else:
        address = cluster.get("ray_address") if isinstance(cluster, dict) else None
    return {} if address is None else {"engine": {"weight_transfer": "object_store"}}
