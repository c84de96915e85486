"""How a weight group gets from the trainer's first rank to where the engines read it: `[engine] weight_transfer`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from agentrl.errors import TrainerError
from agentrl.types import WeightGroup

logger = logging.getLogger(__name__)

PUT_S = 120.0
"""For a machine to take a group; one that does not is left out, and its engines miss the version."""


class Ranks(Protocol):
    """Every rank of a trainer. Raises TrainerError."""

    async def all_ranks(self, method: str, *args: object) -> Any:
        """The answer of the first."""
        ...

    async def all_ranks_in_two(self, method: str, *args: object) -> tuple[Any, Any]:
        """The first part of the first's answer, and a reference to the second, which stays where it is."""
        ...


class Carrier(Protocol):
    """Its directory is the one that engines read from, under the same path on every machine."""

    async def bring(self, trainer: Ranks, version: int, index: int, *, changed_only: bool) -> WeightGroup: ...

    async def discard(self, group: WeightGroup) -> None: ...


class SharedMemoryCarrier:
    """The trainer writes the file itself: one machine."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def bring(self, trainer: Ranks, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        group: WeightGroup = await trainer.all_ranks(
            "write_weights", version, index, str(self._directory), changed_only
        )
        return group

    async def discard(self, group: WeightGroup) -> None:
        Path(group.path).unlink(missing_ok=True)


class ObjectStoreCarrier:
    """The bytes travel as a Ray object, from machine to machine; one shelf a machine writes them down."""

    def __init__(
        self, directory: Path, find: Callable[[], Awaitable[Sequence[Any]]], *, remote: Callable[[Any], Any]
    ) -> None:
        """find: the actors that are a `Shelf`, one on each machine that has engines now. Asked for every version."""
        self._directory, self._find, self._remote = directory, find, remote
        self._shelves: list[Any] = []

    async def bring(self, trainer: Ranks, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        """Raises TrainerError when no machine takes the group."""
        if index == 0:
            self._shelves = list(await self._find())
        group, data = await trainer.all_ranks_in_two("pack_weights", version, index, str(self._directory), changed_only)
        started = time.perf_counter()
        await self._all("put_weights", group, data)
        transfer = {"transfer": time.perf_counter() - started}
        return msgspec.structs.replace(group, seconds=group.seconds | transfer)

    async def discard(self, group: WeightGroup) -> None:
        await self._all("discard_weights", group)

    async def _all(self, method: str, *args: object) -> None:
        """A machine that fails is left out until the next version."""
        calls = [self._within(getattr(shelf, method).remote(*args)) for shelf in self._shelves]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        failed = [answer for answer in answers if isinstance(answer, BaseException)]
        for error in failed:
            logger.error("a machine gets no more of this version (%s): %r", method, error)
        both = zip(self._shelves, answers, strict=True)
        self._shelves = [shelf for shelf, answer in both if not isinstance(answer, BaseException)]
        if not self._shelves and method == "put_weights":
            raise TrainerError(f"no machine of the engines took weights: {failed[:1]}; see logs/engine-*-actor.log")

    async def _within(self, call: Any) -> None:
        async with asyncio.timeout(PUT_S):
            await self._remote(call)


class Shelf:
    """Where weights of other machines are put down on this one, for its engines to read."""

    def put_weights(self, group: WeightGroup, data: Any) -> None:
        """Write `data`, any buffer of bytes, as the group's file: whole under its name or not there."""
        path = Path(group.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        with partial.open("wb") as file:
            file.write(memoryview(data))
        partial.rename(path)

    def discard_weights(self, group: WeightGroup) -> None:
        Path(group.path).unlink(missing_ok=True)
