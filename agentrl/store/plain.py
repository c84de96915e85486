"""The few statements that every episode needs, given to the database's driver as they are: building, compiling and
binding them costs SQLAlchemy several times what the database takes to run them. All else goes through SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, Table

_ROWS_AT_ONCE = 32
"""Of a table with a few dozen columns: far under every database's limit of values in a statement."""


class Plain:
    """A transaction that is under way on one of the driver's connections. Values are of types that the driver takes."""

    def __init__(self, cursor: Any, place: str) -> None:
        self._cursor = cursor
        self._place = place  # what stands for a value in a statement

    def insert(self, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows that all have the same columns, some in a statement."""
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = rows[start : start + _ROWS_AT_ONCE]
            self.insert_at_once(table, list(part[0]), [list(row.values()) for row in part])

    def insert_at_once(self, table: Table, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """In order, in one statement: a statement each would hand Python's lock to and fro as often."""
        places = ", ".join([self._places(len(columns))] * len(rows))
        statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES {places}"
        self._cursor.execute(statement, [value for row in rows for value in row])

    def holds(self, table: Table, session_id: str) -> bool:
        """Whether there is a row of this session."""
        self._cursor.execute(f"SELECT 1 FROM {table.name} WHERE session_id = {self._place} LIMIT 1", (session_id,))
        return self._cursor.fetchone() is not None

    def delete(self, table: Table, session_id: str) -> None:
        """All rows of this session."""
        self._cursor.execute(f"DELETE FROM {table.name} WHERE session_id = {self._place}", (session_id,))

    def _places(self, count: int) -> str:
        return f"({', '.join([self._place] * count)})"


@contextmanager
def transaction(engine: Engine) -> Iterator[Plain]:
    """Committed when the block ends, undone when it raises. Raises the driver's errors and SQLAlchemy's."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        if engine.dialect.name == "sqlite":  # see `agentrl.store.connect`
            cursor.execute("BEGIN IMMEDIATE")
        yield Plain(cursor, "%s" if engine.dialect.paramstyle in ("format", "pyformat") else "?")
        connection.commit()
    finally:
        connection.close()  # back to the pool, which undoes what was not committed
