"""The durable store: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec
from sqlalchemy import Connection, RowMapping, Select, Table, func, insert, select, tuple_, update

from agentrl.errors import StoreError, TrajectoryNotFound
from agentrl.store import journal, schema
from agentrl.store import position as positions
from agentrl.store.base import GroupRecord, Settlement
from agentrl.store.codec import Encoded, decode, decode_task, encode, encode_reward, encode_task
from agentrl.store.database import Conflict, Database
from agentrl.store.plain import Plain
from agentrl.store.rules import Standing, refuse_another_number, refuse_call_rewards, refuse_settlement
from agentrl.types import JournalEntry, Mode, SwapRecord, Task, Trajectory

R = TypeVar("R", bound=msgspec.Struct)
P = ParamSpec("P")

_PAGE = 256
"""Headers or records fetched at once; of whole trajectories one is in memory at a time."""


def _decided_again(write: Callable[P, None]) -> Callable[P, None]:
    """Once more after a Conflict: what another writer committed first is seen now, and refused in words."""

    @wraps(write)
    def twice(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(*args, **kwargs)
        except Conflict:
            write(*args, **kwargs)

    return twice


class SqlStore:
    """`agentrl.store.base.TrajectoryStore` over SQLAlchemy. One per process; share it between threads."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        """Opens the store at a SQLAlchemy URL, `sqlite:///runs/demo/trajectories.db` for one.

        With `create=False` a store that is not there is an error, not an empty store. Raises StoreError: it cannot be
        opened, is not a trajectory store, or has the layout of another version of agentrl.
        """
        self._database = Database(url, create=create)

    @classmethod
    def at(cls, path: Path, *, create: bool = True) -> SqlStore:
        """The SQLite store in this file."""
        return cls(f"sqlite:///{path}", create=create)

    @_decided_again
    def save(self, trajectory: Trajectory) -> None:
        encoded = encode(trajectory)
        self._database.raise_layout()
        with self._database.write_plainly(f"saving trajectory {trajectory.session_id!r}") as database:
            _save(database, encoded)

    def write(self, entries: Sequence[JournalEntry], trajectories: Sequence[Trajectory]) -> None:
        saved = [encode(trajectory) for trajectory in trajectories]  # before the transaction, which others wait for
        self._database.raise_layout()
        with self._database.write_plainly(
            f"journaling {len(entries)} events and saving {len(trajectories)} trajectories"
        ) as database:
            journal.append(database, entries)
            for encoded in saved:
                _save(database, encoded)

    def get(self, session_id: str) -> Trajectory:
        with self._database.read(f"reading trajectory {session_id!r}") as connection:
            header = _header(connection, session_id)
            if header is None:
                raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")
            return _load(connection, header, self._database.layout)

    def iterate(self, *, mode: Mode | None = None, group_id: str | None = None) -> Iterator[Trajectory]:
        """No transaction is held open between two trajectories, so a slow reader does not hold up a writer."""
        table = schema.trajectories
        order = (table.c.finished_at, table.c.session_id)
        query = select(*order).order_by(*order).limit(_PAGE)
        if mode is not None:
            query = query.where(table.c.mode == mode)
        if group_id is not None:
            query = query.where(table.c.group_id == group_id)
        page = self._all("listing trajectories", query)
        while page:
            for entry in page:
                yield self.get(entry["session_id"])
            after = tuple_(*order) > tuple_(page[-1]["finished_at"], page[-1]["session_id"])
            page = self._all("listing trajectories", query.where(after))

    def count(self, *, mode: Mode | None = None) -> int:
        query = select(func.count()).select_from(schema.trajectories)
        if mode is not None:
            query = query.where(schema.trajectories.c.mode == mode)
        with self._database.read("counting trajectories") as connection:
            return int(connection.execute(query).scalar_one())

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        try:
            columns = encode_reward(reward, components)
        except (TypeError, ValueError) as error:
            raise StoreError(f"trajectory {session_id!r} cannot be scored: {error}") from error
        table = schema.trajectories
        with self._database.write(f"scoring trajectory {session_id!r}") as connection:
            done = connection.execute(update(table).where(table.c.session_id == session_id).values(columns))
            if done.rowcount != 1:
                raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")

    def set_call_rewards(self, session_id: str, rewards: Sequence[float | None]) -> None:
        refuse_call_rewards(session_id, rewards)
        table = schema.calls
        of_session = table.c.session_id == session_id
        with self._database.write(f"scoring the calls of trajectory {session_id!r}") as connection:
            if _header(connection, session_id) is None:
                raise TrajectoryNotFound(f"no trajectory {session_id!r} in the store")
            there = connection.execute(select(func.count()).select_from(table).where(of_session)).scalar_one()
            refuse_another_number(session_id, rewards, there)
            for position, reward in enumerate(rewards):
                connection.execute(update(table).where(of_session, table.c.position == position).values(reward=reward))

    @_decided_again
    def admit(self, group_id: str, task: Task, version: int, position: bytes | None = None) -> None:
        text = positions.as_text(position)
        columns = {"group_id": group_id, "task": encode_task(task), "admitted_at_version": version}
        with self._database.write(f"admitting group {group_id!r}") as connection:
            if _group(connection, group_id) is not None:
                raise StoreError(f"group {group_id!r} is admitted already")
            connection.execute(insert(schema.groups), columns)
            positions.write(connection, text)

    @_decided_again
    def settle(
        self,
        group_id: str,
        outcome: str,
        step: int | None,
        settlements: Sequence[Settlement] = (),
        position: bytes | None = None,
    ) -> None:
        text = positions.as_text(position)
        ids = [settlement.session_id for settlement in settlements]
        headers, books, groups = schema.trajectories, schema.settlements, schema.groups
        standing = select(headers.c.session_id, headers.c.mode, headers.c.group_id).where(headers.c.session_id.in_(ids))
        settled = select(books.c.session_id).where(books.c.session_id.in_(ids))
        with self._database.write(f"settling group {group_id!r}") as connection:
            group = _group(connection, group_id, lock=True)
            standings = {row.session_id: Standing(row.mode, row.group_id) for row in connection.execute(standing)}
            done = set(connection.execute(settled).scalars())
            refuse_settlement(group_id, group, outcome, step, settlements, standings, done)
            closing = update(groups).where(groups.c.group_id == group_id).values(outcome=outcome, step=step)
            connection.execute(closing)
            if settlements:
                rows = [{"group_id": group_id, **msgspec.structs.asdict(settlement)} for settlement in settlements]
                connection.execute(insert(books), rows)
            positions.write(connection, text)

    def position(self) -> bytes | None:
        with self._database.read("reading the driver's position") as connection:
            return positions.read(connection)

    def groups(self, *, open_only: bool = False) -> Iterator[GroupRecord]:
        query = select(schema.groups)
        if open_only:
            query = query.where(schema.groups.c.outcome.is_(None))
        for entry in self._in_order(schema.groups, query):
            yield _as_group(entry)

    def settlements(self) -> Iterator[Settlement]:
        for entry in self._in_order(schema.settlements, select(schema.settlements)):
            yield _as_record(entry, Settlement)

    def record_swap(self, swap: SwapRecord) -> None:
        with self._database.write(f"recording version {swap.version} of engine {swap.engine_id!r}") as connection:
            connection.execute(insert(schema.swaps), msgspec.structs.asdict(swap))

    def swaps(self, skip: int = 0) -> list[SwapRecord]:
        query = select(schema.swaps).order_by(schema.swaps.c.seq).offset(skip)
        return [_as_record(entry, SwapRecord) for entry in self._all("reading the swap log", query)]

    def append(self, entries: Sequence[JournalEntry]) -> None:
        if entries:
            with self._database.write_plainly(f"journaling {len(entries)} events") as database:
                journal.append(database, entries)

    def append_at_once(self, entries: Sequence[JournalEntry]) -> bool:
        return self._database.write_at_once(lambda database: journal.append(database, entries))

    def journal(self, owner: str) -> Iterator[tuple[str, list[bytes]]]:
        """The names of the open sessions are read at once, their events a session at a time."""
        with self._database.read(f"listing the sessions of {owner!r}") as connection:
            open_sessions = journal.open_sessions(connection, owner)
        for session_id in open_sessions:
            with self._database.read(f"reading the journal of session {session_id!r}") as connection:
                events = journal.events(connection, session_id, owner)
            if events:  # not saved or forgotten since
                yield session_id, events

    def has_journal(self, session_id: str) -> bool:
        with self._database.read(f"looking for session {session_id!r}") as connection:
            return journal.holds(connection, session_id)

    def forget_journal(self, session_id: str) -> None:
        with self._database.write(f"forgetting the journal of session {session_id!r}") as connection:
            journal.forget(connection, session_id)

    def close(self) -> None:
        self._database.close()

    def _all(self, doing: str, query: Select[Any]) -> Sequence[RowMapping]:
        with self._database.read(doing) as connection:
            return connection.execute(query).mappings().all()

    def _in_order(self, table: Table, query: Select[Any]) -> Iterator[RowMapping]:
        """By `seq`, a page at a time and without a transaction between pages."""
        query = query.order_by(table.c.seq).limit(_PAGE)
        last = 0
        while page := self._all(f"reading {table.name}", query.where(table.c.seq > last)):
            yield from page
            last = page[-1]["seq"]


def _save(database: Plain, encoded: Encoded) -> None:
    session_id = encoded.header["session_id"]
    if database.holds(schema.trajectories, session_id):
        raise StoreError(f"trajectory {session_id!r} is saved already")
    key = {"session_id": session_id}
    database.insert(schema.trajectories, [encoded.header])
    database.insert(schema.calls, [key | columns for columns in encoded.calls])
    rows = [key | {"position": index} | columns for index, columns in enumerate(encoded.rows)]
    database.insert(schema.rows, rows)
    database.delete(schema.journal, session_id)


def _header(connection: Connection, session_id: str) -> RowMapping | None:
    table = schema.trajectories
    return connection.execute(select(table).where(table.c.session_id == session_id)).mappings().one_or_none()


def _group(connection: Connection, group_id: str, *, lock: bool = False) -> GroupRecord | None:
    """`lock` holds other writers of this group off until the transaction ends; SQLite's wait anyway."""
    query = select(schema.groups).where(schema.groups.c.group_id == group_id)
    entry = connection.execute(query.with_for_update() if lock else query).mappings().one_or_none()
    return None if entry is None else _as_group(entry)


def _as_group(entry: RowMapping) -> GroupRecord:
    try:
        task = decode_task(entry["task"])
    except (TypeError, ValueError) as error:
        raise StoreError(f"the task of stored group {entry['group_id']!r} is damaged: {error}") from error
    return _as_record({**entry, "task": task}, GroupRecord)


def _as_record(entry: Mapping[Any, Any], kind: type[R]) -> R:
    """Checked, for SQLite keeps any type in any column. Raises StoreError."""
    try:
        return msgspec.convert({name: entry[name] for name in kind.__struct_fields__}, kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"stored {kind.__name__} {dict(entry)!r:.200} is damaged: {error}") from error


def _load(connection: Connection, header: RowMapping, layout: int) -> Trajectory:
    def parts(table: Table) -> Sequence[RowMapping]:
        query = (
            select(*schema.columns(table, layout))
            .where(table.c.session_id == header["session_id"])
            .order_by(table.c.position)
        )
        return connection.execute(query).mappings().all()

    return decode(header, parts(schema.calls), parts(schema.rows))
