"""The trajectory store: what was sampled, how it was scored, what became of it.

One protocol; `agentrl.store.sql` and `agentrl.store.memory` are behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from agentrl.types import JournalEntry, Mode, SwapRecord, Task, Trajectory

TRAINED = "trained"
"""The outcome of what got gradient; every other outcome is the named reason why it did not."""


class GroupRecord(Struct, frozen=True, kw_only=True):
    """The books of one admitted group (invariant 7): open until `outcome` is set, which happens once."""

    group_id: str
    task: Task
    admitted_at_version: int
    outcome: str | None = None
    step: int | None = None


class Settlement(Struct, frozen=True, kw_only=True):
    """What became of one trajectory of a step."""

    session_id: str
    outcome: str  # TRAINED, or the reason it was dropped
    step: int
    tokens: int = 0  # sampled tokens that got gradient


class TrajectoryStore(Protocol):
    """Synchronous; every method is durable on return and safe to call from several threads and processes.

    Raises StoreError: an id saved twice, a second settlement, what cannot be stored; TrajectoryNotFound for an unknown
    id, and StoreUnavailable when the database does not take it now.
    """

    def save(self, trajectory: Trajectory) -> None:
        """Everything in it comes back equal; free-form dicts (message, metadata, options) as JSON has them.

        The session's journal, which it replaces, is forgotten in the same transaction.
        """
        ...

    def get(self, session_id: str) -> Trajectory: ...

    def iterate(self, *, mode: Mode | None = None, group_id: str | None = None) -> Iterator[Trajectory]:
        """In order of `finished_at`, a bounded number in memory at once.

        What is saved while it runs comes too when it finished later than what was yielded last.
        """
        ...

    def count(self, *, mode: Mode | None = None) -> int: ...

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None: ...

    def set_call_rewards(self, session_id: str, rewards: Sequence[float | None]) -> None:
        """Of the trajectory's calls, in their order. Raises StoreError when it has another number of calls."""
        ...

    def admit(self, group_id: str, task: Task, version: int, position: bytes | None = None) -> None:
        """`position`, JSON, replaces the last one in the same transaction: where the driver stands once it is done."""
        ...

    def settle(
        self,
        group_id: str,
        outcome: str,
        step: int | None,
        settlements: Sequence[Settlement] = (),
        position: bytes | None = None,
    ) -> None:
        """Closes a group and its trajectories in one transaction, with the `position`: all of it happens, or none.

        A trajectory settled as TRAINED has to be stored, of mode train and of this group, and the group itself settled
        as TRAINED at the same step. One that was dropped may be absent: an episode can die before it leaves tokens.
        """
        ...

    def position(self) -> bytes | None:
        """The last one that `admit` or `settle` was given."""
        ...

    def groups(self, *, open_only: bool = False) -> Iterator[GroupRecord]: ...

    def settlements(self) -> Iterator[Settlement]: ...

    def record_swap(self, swap: SwapRecord) -> None: ...

    def swaps(self, skip: int = 0) -> list[SwapRecord]:
        """In the order in which they were recorded, without the first `skip`."""
        ...

    def append(self, entries: Sequence[JournalEntry]) -> None:
        """Journals events of sessions that go on, in order and in one transaction: all of them, or none."""
        ...

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        """`append` if that takes no waiting for other writers; False, with nothing written, otherwise. It may always be
        False. Raises nothing of the store's: `append` says what is wrong."""
        ...

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        """`append` and `save`, of different sessions, in one transaction: all of it, or nothing."""
        ...

    def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
        """The owner's sessions in the order in which they were opened, each with its events in order.

        The events of one session are in memory at a time. A session that is saved is not among them.
        """
        ...

    def has_journal(self, session_id: str) -> bool:
        """Whether an unsaved session of this id has a journal, of whichever owner."""
        ...

    def forget_journal(self, session_id: str) -> None:
        """Of a session that nobody will save; one that has none is fine."""
        ...

    def close(self) -> None: ...
