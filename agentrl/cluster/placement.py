"""What a run reserves of a Ray cluster, and who gets which part of it. Pure: no Ray here.

A *bundle* is what one node has to have at once; Ray reserves a *group* of them, all or none, by the group's strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from agentrl.train.cluster_config import ClusterConfig, Strategy

Resources = Mapping[str, float]

ROUNDING = 1e-6


@dataclass(frozen=True)
class Bundle:
    """`resources` hold nothing that is 0. `engine` and `ranks` are who is in it, by number."""

    resources: Resources
    engine: int | None = None
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class BundleGroup:
    """`what` says in an error whose it is."""

    what: str
    strategy: Strategy
    bundles: tuple[Bundle, ...]


@dataclass(frozen=True)
class Seat:
    """Of an engine or a rank: group and bundle by index, and the GPUs that Ray gives it.

    `device` is for a rank that takes 0 of them: which of its engine's GPUs it uses.
    """

    group: int
    bundle: int
    gpus: int
    device: int | None = None


@dataclass(frozen=True)
class Plan:
    """Who sits where, in groups to reserve. Without groups everybody is anywhere and shares."""

    groups: tuple[BundleGroup, ...]
    engines: tuple[Seat | None, ...]
    ranks: tuple[Seat | None, ...]


@dataclass(frozen=True)
class Node:
    """A living node and what is free there."""

    address: str
    free: Resources


def plan(cluster: ClusterConfig, *, engines: int, gpus_each: int, ranks: int, gpus: bool) -> Plan:
    """`gpus_each`: of one engine, where the cluster has GPUs to give (`gpus`); see `engine.parallel`."""
    joined = cluster.ray_address is not None
    engine_gpus = (gpus_each if cluster.engine_gpus is None else cluster.engine_gpus) if gpus else 0
    for_engine = _resources(cluster.engine_cpus, cluster.engine_resources, gpus=engine_gpus, shares=not joined)
    for_rank = _resources(cluster.rank_cpus, cluster.rank_resources, gpus=int(gpus), shares=not joined)
    shared = _guests(ranks, engines, max(1, engine_gpus)) if cluster.colocated else [()] * engines
    own = range(sum(map(len, shared)), ranks)
    without_gpu = {name: amount for name, amount in for_rank.items() if name != "GPU"}
    groups = [
        BundleGroup(
            "engines and their trainer ranks" if cluster.colocated else "engines",
            cluster.engines,
            tuple(
                Bundle(_sum(for_engine, *[without_gpu] * len(guests)), index, guests)
                for index, guests in enumerate(shared)
            ),
        ),
        BundleGroup("trainer ranks", cluster.ranks, tuple(Bundle(for_rank, None, (rank,)) for rank in own)),
    ]
    kept = [group for group in groups if group.bundles and all(bundle.resources for bundle in group.bundles)]
    return Plan(
        tuple(kept),
        tuple(_engine_seat(kept, index, engine_gpus) for index in range(engines)),
        tuple(_rank_seat(kept, rank, has_gpu=gpus) for rank in range(ranks)),
    )


def shortage(planned: Plan, nodes: Sequence[Node]) -> str | None:
    """What the nodes lack for the plan, in words; None where nothing says that it cannot be.

    Never wrong about a lack: whatever it names cannot be placed. Ray has the last word on what it lets pass.
    """
    lacks = [lack for group in planned.groups if (lack := _lack(group, nodes))]
    if not lacks:
        lacks = list(_lack_in_sum(planned, nodes))
    return "; ".join(lacks) or None


def describe(resources: Resources) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in sorted(resources.items())) or "nothing"


def _resources(cpus: float | None, more: Resources, *, gpus: int, shares: bool) -> dict[str, float]:
    """`shares`: whether no CPUs are reserved unless some are asked for."""
    reserved = (0.0 if shares else 1.0) if cpus is None else cpus
    return {name: amount for name, amount in {"CPU": reserved, "GPU": float(gpus), **more}.items() if amount}


def _guests(ranks: int, engines: int, room: int) -> list[tuple[int, ...]]:
    """The ranks in each engine's bundle."""
    starts = range(0, engines * room, room)
    return [tuple(range(min(start, ranks), min(start + room, ranks))) for start in starts]


def _sum(*parts: Resources) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) for name in names}


def _engine_seat(groups: Sequence[BundleGroup], engine: int, gpus: int) -> Seat | None:
    for index, at, bundle in _bundles(groups):
        if bundle.engine == engine:
            return Seat(index, at, gpus)
    return None


def _rank_seat(groups: Sequence[BundleGroup], rank: int, *, has_gpu: bool) -> Seat | None:
    for index, at, bundle in _bundles(groups):
        if rank not in bundle.ranks:
            continue
        if bundle.engine is None:
            return Seat(index, at, int(has_gpu))
        return Seat(index, at, 0, bundle.ranks.index(rank) if has_gpu else None)
    return None


def _bundles(groups: Sequence[BundleGroup]) -> Iterator[tuple[int, int, Bundle]]:
    for index, group in enumerate(groups):
        for at, bundle in enumerate(group.bundles):
            yield index, at, bundle


def _lack(group: BundleGroup, nodes: Sequence[Node]) -> str | None:
    """What one group cannot have by itself."""
    needs = [bundle.resources for bundle in group.bundles]
    for need in needs:
        if not any(_times(need, node.free) for node in nodes):
            return f"no node has {describe(need)} free, which {group.what} need on one node"
    if group.strategy == "strict_pack" and not any(_times(_sum(*needs), node.free) for node in nodes):
        return f"no node has {describe(_sum(*needs))} free, which {group.what} need on one node (strict_pack)"
    fitting = [node for node in nodes if any(_times(need, node.free) for need in needs)]
    if group.strategy == "strict_spread" and len(fitting) < len(needs):
        return f"{len(needs)} {group.what} need a node each (strict_spread), and {len(fitting)} have room for one"
    if all(need == needs[0] for need in needs):
        room = sum(_times(needs[0], node.free) for node in nodes)
        if room < len(needs):
            return f"{len(needs)} times {describe(needs[0])} are needed for {group.what}, and there is room for {room}"
    return None


def _lack_in_sum(planned: Plan, nodes: Sequence[Node]) -> Iterator[str]:
    """What all groups together cannot have."""
    needed = _sum(*(bundle.resources for group in planned.groups for bundle in group.bundles))
    free = _sum(*(node.free for node in nodes))
    for name, amount in needed.items():
        if amount > free.get(name, 0.0) + ROUNDING:
            yield f"{amount:g} {name} are needed in all, and {free.get(name, 0.0):g} are free"


def _times(need: Resources, free: Resources) -> int:
    """How often the need fits."""
    return min((floor((free.get(name, 0.0) + ROUNDING) / amount) for name, amount in need.items()), default=0)
