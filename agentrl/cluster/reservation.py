"""What Ray reserves for a run: placement groups, and who is where in them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.cluster.placement import Node, Plan, Seat, describe, shortage
from agentrl.errors import RunError

Options = dict[str, Any]
"""Of a Ray actor."""
RAYS_OWN = ("memory", "object_store_memory", "node:")  # resources that nobody asks for here


class Reservation:
    """Ray's placement groups for a plan. Bundles of a node that dies are reserved anew as soon as there is room."""

    def __init__(self, planned: Plan, groups: Sequence[Any]) -> None:
        self.planned = planned
        self._groups = groups

    def options(self, seat: Seat | None) -> Options:
        if seat is None:
            return {}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._groups[seat.group], seat.bundle)
        return {"scheduling_strategy": place, "num_gpus": seat.gpus}

    def node_of(self, seat: Seat | None) -> str | None:
        """Ray's id of it; None while the bundle has no node."""
        if seat is None:
            return None
        from ray.util.placement_group import placement_group_table

        found = placement_group_table(self._groups[seat.group])["bundles_to_node_id"].get(seat.bundle)
        return found or None

    def nodes(self) -> set[str]:
        """That somebody sits on."""
        return {node for seat in (*self.planned.engines, *self.planned.ranks) if (node := self.node_of(seat))}

    async def lent_devices(self) -> dict[int, str]:
        """The GPU of each rank that uses its engine's: what Ray gives in that bundle, asked before the engine is."""
        seats = {index: seat for index, seat in enumerate(self.planned.ranks) if seat and seat.device is not None}
        given: dict[tuple[int, int], Sequence[str]] = {}
        for seat in seats.values():
            if (where := (seat.group, seat.bundle)) not in given:
                engine = self.planned.groups[seat.group].bundles[seat.bundle].engine
                assert engine is not None, "only an engine lends its GPUs"
                given[where] = await self._gpus(self.planned.engines[engine])
        return {index: given[seat.group, seat.bundle][seat.device or 0] for index, seat in seats.items()}

    def release(self) -> None:
        """Never fails."""
        from ray.util.placement_group import remove_placement_group

        for group in self._groups:
            with contextlib.suppress(Exception):
                remove_placement_group(group)

    async def _gpus(self, seat: Seat | None) -> Sequence[str]:
        import ray

        def ids() -> list[str]:
            import ray

            return [str(gpu) for gpu in ray.get_gpu_ids()]

        given: Sequence[str] = await ray.remote(ids).options(num_cpus=0, **self.options(seat)).remote()
        return given


async def reserve(planned: Plan, addresses: Mapping[str, str], *, timeout_s: float) -> Reservation:
    """`addresses`: of the living nodes by id. Raises RunError naming what is missing, and reserves nothing then."""
    if not planned.groups:
        return Reservation(planned, ())
    from ray.util.placement_group import placement_group

    if lack := shortage(planned, _free(addresses)):
        raise RunError(f"there is no room for the run: {lack}. Free are {_listed(_free(addresses))}")
    made = [
        placement_group([dict(bundle.resources) for bundle in group.bundles], strategy=group.strategy.upper())
        for group in planned.groups
    ]
    reservation = Reservation(planned, made)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.gather(*(group.ready() for group in made))
    except BaseException as error:
        free = _listed(_free(addresses))
        reservation.release()
        if not isinstance(error, TimeoutError):
            raise
        raise RunError(
            f"Ray did not reserve what the run needs within cluster.placement_timeout_s = {timeout_s:g} s: "
            f"{_needs(planned)}. Left free are {free}; free more, ask for less, or raise the time"
        ) from None
    return reservation


def _free(addresses: Mapping[str, str]) -> list[Node]:
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [Node(address, free.get(node, {})) for node, address in addresses.items()]


def _listed(free: Sequence[Node]) -> str:
    return "; ".join(
        f"on {node.address} "
        + describe({name: much for name, much in node.free.items() if not name.startswith(RAYS_OWN)})
        for node in free
    )


def _needs(planned: Plan) -> str:
    return "; ".join(
        f"for {group.what} ({group.strategy}) " + " and ".join(describe(bundle.resources) for bundle in group.bundles)
        for group in planned.groups
    )
