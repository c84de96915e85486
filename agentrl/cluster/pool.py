"""What is known of the run's engines, and which of them may be routed to. Pure: no I/O.

    starting ── up ──► behind ── took the version ──► current ── died, hangs, failed a swap ──► quarantined
                         ▲  ▲                           │                                          │
                         │  └── missed a version ───────┘                                          │
                         └───────────────────────── restarted ─────────────────────────────────────┘

A version is the pool's once a swap to it has ended with an engine that took it. From then on every engine that did not
take it is behind, or quarantined, and gets no traffic; an engine that comes back is behind until it has it (invariant
4). Where no version was published yet, an engine that is up has it: the one it starts with, 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["starting", "behind", "current", "quarantined"]


@dataclass(slots=True)
class Member:
    """One engine. `life` counts its starts: what was asked of an earlier life says nothing of this one."""

    engine_id: str
    state: State = "starting"
    version: int | None = None  # that it acknowledged, in this life
    life: int = 0
    fed: bool = False  # whether it was sent every tensor in this life


@dataclass(frozen=True, slots=True)
class Seat:
    """A member's place in a swap: good for the life that it had when the swap began."""

    engine_id: str
    life: int


class PoolOfEngines:
    """At most one swap at a time. Names that it does not know raise KeyError."""

    def __init__(self, engine_ids: Iterable[str]) -> None:
        self._members = {engine_id: Member(engine_id) for engine_id in engine_ids}
        self._swapping: int | None = None
        self._took: set[Seat] = set()
        self.version = 0  # the newest that a swap ended with

    def __getitem__(self, engine_id: str) -> Member:
        return self._members[engine_id]

    @property
    def swapping(self) -> bool:
        return self._swapping is not None

    @property
    def routable(self) -> list[str]:
        return [member.engine_id for member in self._members.values() if member.state == "current"]

    @property
    def up(self) -> list[Seat]:
        """Those that a swap can reach."""
        return [self._seat(member) for member in self._members.values() if member.state in ("current", "behind")]

    @property
    def behind(self) -> list[Seat]:
        return [self._seat(member) for member in self._members.values() if member.state == "behind"]

    def started(self, engine_id: str) -> None:
        """Up again, or for the first time, with the initial weights."""
        member = self._members[engine_id]
        member.life += 1
        member.version, member.fed = 0, False
        member.state = "current" if self.version == 0 and not self.swapping else "behind"

    def lost(self, engine_id: str) -> bool:
        """It died, hangs, or failed a swap: it is asked nothing until `started`. False when that was known."""
        member = self._members[engine_id]
        if member.state == "quarantined":
            return False
        member.state = "quarantined"
        return True

    def begin(self, version: int) -> None:
        """A swap to `version`, which is the next one, or the newest for engines that are behind."""
        if self.swapping or version < self.version:
            raise ValueError(f"a swap to {version} while {self._swapping} is under way and {self.version} is current")
        self._swapping, self._took = version, set()

    def took(self, seat: Seat) -> bool:
        """It acknowledged the version. False for one that was lost meanwhile: it is not to be routed to."""
        member = self._members[seat.engine_id]
        if self._swapping is None or member.life != seat.life or member.state not in ("current", "behind"):
            return False
        self._took.add(seat)
        member.version, member.fed = self._swapping, True
        return True

    def end(self) -> list[str]:
        """Ends the swap; its version is the pool's now if somebody took it. Those that are routable and were not."""
        assert self._swapping is not None
        version, self._swapping = self._swapping, None
        took = [m for m in self._members.values() if self._seat(m) in self._took and m.state in ("current", "behind")]
        if took:
            self.version = version
        for member in self._members.values():
            if member.state == "current" and member.version != self.version:
                member.state = "behind"
        risen = [member for member in took if member.state == "behind"]
        for member in took:
            member.state = "current"
        return [member.engine_id for member in risen]

    def missed(self, engine_id: str) -> None:
        """By no fault of its own it has not the weights that it had: it is up, and needs whole ones."""
        member = self._members[engine_id]
        member.fed = False
        if member.state == "current":
            member.state = "behind"

    @staticmethod
    def _seat(member: Member) -> Seat:
        return Seat(member.engine_id, member.life)
