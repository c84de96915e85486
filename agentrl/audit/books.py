"""What a run wrote down of its trajectories as a whole, and the checks over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec import Struct

from agentrl.audit.finding import Verdict
from agentrl.store.base import GroupRecord, Settlement
from agentrl.types import Mode, Trajectory


class SessionFacts(Struct, frozen=True):
    """What the checks over the books need of one trajectory."""

    mode: Mode
    group_id: str | None
    tokens: dict[int, int]  # version -> tokens with loss_mask 1


@dataclass
class Books:
    """Filled while the trajectories stream past; a few hundred bytes each."""

    settlements: list[Settlement]
    groups: dict[str, GroupRecord]
    complete: bool  # the run ended by itself, so nothing may be open
    max_lag: int | None  # the staleness bound K; None when the run's configuration does not say
    sessions: dict[str, SessionFacts] = field(default_factory=dict)

    def add(self, trajectory: Trajectory) -> None:
        tokens: Counter[int] = Counter()
        for row in trajectory.rows:
            for span in row.versions:
                tokens[span.version] += span.end - span.start
        group_id = trajectory.metadata.get("group_id")
        self.sessions[trajectory.session_id] = SessionFacts(trajectory.mode, group_id, dict(tokens))


@dataclass(frozen=True)
class BooksCheck:
    """A promise that the run keeps as a whole."""

    name: str
    invariant: int
    unit: str
    examine: Callable[[Books], Verdict]
