"""The write-ahead journal's rows: events of sessions whose trajectory is not saved yet."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, delete, exists, func, select

from agentrl.store import schema
from agentrl.store.plain import Plain
from agentrl.types import JournalEntry

_COLUMNS = ("session_id", "owner", "data")
_ROWS_AT_ONCE = 512
"""Three values each: far under every database's limit."""


def append(database: Plain, entries: Sequence[JournalEntry]) -> None:
    """In order."""
    for start in range(0, len(entries), _ROWS_AT_ONCE):
        rows = entries[start : start + _ROWS_AT_ONCE]
        database.insert_at_once(schema.journal, _COLUMNS, [(row.session_id, row.owner, row.data) for row in rows])


def open_sessions(connection: Connection, owner: str) -> list[str]:
    """In the order in which they were opened; without those whose trajectory was saved meanwhile."""
    table = schema.journal
    saved = exists().where(schema.trajectories.c.session_id == table.c.session_id)
    opened = select(table.c.session_id).where(table.c.owner == owner, ~saved).group_by(table.c.session_id)
    return list(connection.execute(opened.order_by(func.min(table.c.seq))).scalars())


def events(connection: Connection, session_id: str, owner: str) -> list[bytes]:
    table = schema.journal
    query = select(table.c.data).where(table.c.session_id == session_id, table.c.owner == owner).order_by(table.c.seq)
    return [bytes(data) for data in connection.execute(query).scalars()]


def holds(connection: Connection, session_id: str) -> bool:
    """Whether any gateway has an open session of this id."""
    found = select(schema.journal.c.seq).where(schema.journal.c.session_id == session_id).limit(1)
    return connection.execute(found).first() is not None


def forget(connection: Connection, session_id: str) -> None:
    connection.execute(delete(schema.journal).where(schema.journal.c.session_id == session_id))
