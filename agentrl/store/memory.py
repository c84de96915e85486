"""The store's in-memory twin: the same contract, codec and refusals; gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from agentrl.errors import StoreError, TrajectoryNotFound
from agentrl.store.base import GroupRecord, Settlement
from agentrl.store.codec import Encoded, decode, decode_task, encode, encode_reward, encode_task
from agentrl.store.position import as_text
from agentrl.store.rules import Standing, refuse_another_number, refuse_call_rewards, refuse_settlement
from agentrl.types import JournalEntry, Mode, SwapRecord, Task, Trajectory


class MemoryStore:
    """`agentrl.store.base.TrajectoryStore` without a file; keeps encoded copies, never the caller's objects."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._trajectories: dict[str, Encoded] = {}
        self._groups: dict[str, GroupRecord] = {}
        self._settlements: dict[str, Settlement] = {}
        self._swaps: list[SwapRecord] = []
        self._position: str | None = None
        self._journal: dict[tuple[str, str], list[bytes]] = {}  # by session and owner

    def save(self, trajectory: Trajectory) -> None:
        self.write((), (trajectory,))

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        encoded = {trajectory.session_id: encode(trajectory) for trajectory in trajectories}
        with self._lock:
            for session_id in encoded:
                if session_id in self._trajectories:
                    raise StoreError(f"trajectory {session_id!r} is saved already")
            self._trajectories |= encoded
            for session_id in encoded:
                self._forget(session_id)
            self._append(entries)

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

    def set_call_rewards(self, session_id: str, rewards: Sequence[float | None]) -> None:
        refuse_call_rewards(session_id, rewards)
        with self._lock:
            encoded = self._trajectories.get(session_id)
            if encoded is None:
                raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")
            refuse_another_number(session_id, rewards, len(encoded.calls))
            scored = zip(encoded.calls, rewards, strict=True)
            encoded.calls = [{**call, "reward": reward} for call, reward in scored]

    def admit(self, group_id: str, task: Task, version: int, position: bytes | None = None) -> None:
        text = as_text(position)
        copy = decode_task(encode_task(task))
        with self._lock:
            if group_id in self._groups:
                raise StoreError(f"group {group_id!r} is admitted already")
            self._groups[group_id] = GroupRecord(group_id=group_id, task=copy, admitted_at_version=version)
            self._position = text or self._position

    def settle(
        self,
        group_id: str,
        outcome: str,
        step: int | None,
        settlements: Sequence[Settlement] = (),
        position: bytes | None = None,
    ) -> None:
        text = as_text(position)
        with self._lock:
            group = self._groups.get(group_id)
            ids = [settlement.session_id for settlement in settlements]
            headers = [self._trajectories[each].header for each in ids if each in self._trajectories]
            standings = {header["session_id"]: Standing(header["mode"], header["group_id"]) for header in headers}
            refuse_settlement(group_id, group, outcome, step, settlements, standings, self._settlements)
            assert group is not None
            self._groups[group_id] = msgspec.structs.replace(group, outcome=outcome, step=step)
            self._settlements.update({settlement.session_id: settlement for settlement in settlements})
            self._position = text or self._position

    def position(self) -> bytes | None:
        with self._lock:
            return None if self._position is None else self._position.encode()

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

    def swaps(self, skip: int = 0) -> list[SwapRecord]:
        with self._lock:
            return list(self._swaps[skip:])

    def append(self, entries: Sequence[JournalEntry]) -> None:
        with self._lock:
            self._append(entries)

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        self.append(entries)
        return True

    def _append(self, entries: Sequence[JournalEntry]) -> None:
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
