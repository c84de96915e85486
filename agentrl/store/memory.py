"""The store's in-memory twin: the same contract, codec and refusals; gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agentrl.errors import StoreError, TrajectoryNotFound
from agentrl.store.base import GroupRecord, Settlement
from agentrl.store.codec import Encoded, decode, decode_task, encode, encode_reward, encode_task
from agentrl.store.rules import Standing, refuse_settlement
from agentrl.types import JournalEntry, Mode, SwapRecord, Task, Trajectory


class MemoryStore:
    """`agentrl.store.base.TrajectoryStore` without a file; keeps encoded copies, never the caller's objects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trajectories: dict[str, Encoded] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._settlements: dict[str, Settlement] = {}
        self._swaps: list[SwapRecord] = []
        self._journal: dict[tuple[str, str], list[bytes]] = {}  # by session and owner

    def save(self, trajectory: Trajectory) -> None:
        encoded = encode(trajectory)
        with self._lock:
            if trajectory.session_id in self._trajectories:
                raise StoreError(f"trajectory {trajectory.session_id!r} is saved already")
            self._trajectories[trajectory.session_id] = encoded
            self._forget(trajectory.session_id)

    def get(self, session_id: str) -> Trajectory:
        with self._lock:
            encoded = self._trajectories.get(session_id)
        if encoded is None:
            raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")
        return decode(encoded.header, encoded.calls, encoded.rows)

    def iterate(self, *, mode: Mode | None = None, group_id: str | None = None) -> Iterator[Trajectory]:
        with self._lock:
            headers = [encoded.header for encoded in self._trajectories.values()]
        for header in sorted(headers, key=lambda header: (header["finished_at"], header["session_id"])):
            if mode in (None, header["mode"]) and group_id in (None, header["group_id"]):
                yield self.get(header["session_id"])

    def count(self, *, mode: Mode | None = None) -> int:
        with self._lock:
            return sum(mode in (None, encoded.header["mode"]) for encoded in self._trajectories.values())

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        try:
            columns = encode_reward(reward, components)
        except (TypeError, ValueError) as error:
            raise StoreError(f"trajectory {session_id!r} cannot be scored: {error}") from error
        with self._lock:
            encoded = self._trajectories.get(session_id)
            if encoded is None:
                raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")
            encoded.header = {**encoded.header, **columns}

    def admit(self, group_id: str, task: Task, version: int) -> None:
        copy = decode_task(encode_task(task))
        with self._lock:
            if group_id in self._groups:
                raise StoreError(f"group {group_id!r} is admitted already")
            self._groups[group_id] = GroupRecord(group_id=group_id, task=copy, admitted_at_version=version)

    def settle(self, group_id: str, outcome: str, step: int | None, settlements: Sequence[Settlement] = ()) -> None:
        with self._lock:
            group = self._groups.get(group_id)
            ids = [settlement.session_id for settlement in settlements]
            headers = [self._trajectories[each].header for each in ids if each in self._trajectories]
            standings = {header["session_id"]: Standing(header["mode"], header["group_id"]) for header in headers}
            refuse_settlement(group_id, group, outcome, step, settlements, standings, self._settlements)
            assert group is not None
            self._groups[group_id] = msgspec.structs.replace(group, outcome=outcome, step=step)
            self._settlements.update({settlement.session_id: settlement for settlement in settlements})

    def groups(self, *, open_only: bool = False) -> Iterator[GroupRecord]:
        with self._lock:
            groups = list(self._groups.values())
        return iter([group for group in groups if not (open_only and group.outcome is not None)])

    def settlements(self) -> Iterator[Settlement]:
        with self._lock:
            return iter(list(self._settlements.values()))

    def record_swap(self, swap: SwapRecord) -> None:
        with self._lock:
            self._swaps.append(swap)

    def swaps(self) -> list[SwapRecord]:
        with self._lock:
            return list(self._swaps)

    def append(self, entries: Sequence[JournalEntry]) -> None:
        with self._lock:
            for entry in entries:
                self._journal.setdefault((entry.session_id, entry.owner), []).append(bytes(entry.data))

    def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
        with self._lock:
            open_sessions = [
                session_id for session_id, of in self._journal if of == owner and session_id not in self._trajectories
            ]
        for session_id in open_sessions:
            with self._lock:
                events = list(self._journal.get((session_id, owner), ()))
            if events:
                yield session_id, events

    def has_journal(self, session_id: str) -> bool:
        with self._lock:
            return any(held == session_id for held, _ in self._journal)

    def forget_journal(self, session_id: str) -> None:
        with self._lock:
            self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        for key in [key for key in self._journal if key[0] == session_id]:
            del self._journal[key]

    def close(self) -> None:
        """Nothing to release; what was saved can still be read."""
