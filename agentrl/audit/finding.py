"""What a check gets and gives. A check is a name and a pure function; one file per idea."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from msgspec import Struct

from agentrl.audit.attribution import Attribution, attribute
from agentrl.types import Trajectory


class Finding(Struct, frozen=True):
    """One broken promise. `session_id` is that of the trajectory, or of the group where a group is at fault."""

    check: str
    session_id: str
    detail: str


class Verdict(Struct):
    """What one check says of one subject. `items` 0 means that there was nothing to check, not that it passed."""

    items: int = 0
    findings: list[Finding] = []
    notes: list[str] = []


@dataclass(frozen=True)
class Subject:
    """One trajectory under audit, with what several checks need of it computed once."""

    trajectory: Trajectory

    @property
    def session_id(self) -> str:
        return self.trajectory.session_id

    @cached_property
    def attribution(self) -> Attribution:
        return attribute(self.trajectory)


@dataclass(frozen=True)
class TrajectoryCheck:
    """A promise that one trajectory keeps by itself."""

    name: str
    invariant: int
    unit: str  # what `Verdict.items` counts
    examine: Callable[[Subject], Verdict] = field(repr=False)
