"""A task's SQLite database as the tool may use it: read only, within bounds of work, memory and output."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MAX_QUERY = 2_000  # characters
MAX_ROWS = 50  # rows shown of a result
MAX_OUTPUT = 2_000  # characters shown of a result
MAX_VALUE = 20_000  # bytes of one value or row, intermediate ones included
MAX_STEPS = 5_000_000  # instructions of SQLite's virtual machine: the same bound on every machine
MAX_SECONDS = 2.0  # beside it, for instructions that are slow

_STEPS_PER_CHECK = 200
_ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
# printf('%.*c', 2000000000, 'x') is one instruction that takes seconds.
_FORBIDDEN_FUNCTIONS = {"load_extension", "fts3_tokenizer", "printf", "format"}

Value = int | float | str | None


@dataclass(frozen=True)
class Table:
    """A table with its rows. `declared` holds what CREATE TABLE says of each column, such as `age INTEGER`."""

    name: str
    declared: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(column.split()[0] for column in self.declared)


class Database:
    """A connection that is closed to every statement but SELECT: to tables in memory, or to a file."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.signatures = _signatures(connection)
        """What there is to query, such as `pets(name,age)`."""

        self._connection.execute("PRAGMA query_only = ON")
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 100)
        self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        self._connection.set_authorizer(_authorize)

    @classmethod
    def of(cls, tables: Sequence[Table]) -> Database:
        """These tables, in memory."""
        # `reset` and the tool may be called in different threads, but one after the other.
        connection = sqlite3.connect(":memory:", check_same_thread=False, cached_statements=0)
        for table in tables:
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(table.declared)})")
            places = ", ".join("?" for _ in table.declared)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({places})", table.rows)
        connection.commit()
        return cls(connection)

    @classmethod
    def at(cls, path: Path) -> Database:
        """An SQLite file, opened read only. Raises ValueError when it is none."""
        try:
            uri = f"{path.expanduser().resolve().as_uri()}?mode=ro"
            return cls(sqlite3.connect(uri, uri=True, check_same_thread=False, cached_statements=0))
        except sqlite3.Error as error:
            raise ValueError(f"{path} cannot be read as an SQLite database: {error}") from error

    def close(self) -> None:
        self._connection.close()

    def query(self, text: str) -> str:
        """The result of one SELECT as text: a bare value, or one line a row under a line of column names.

        Raises ValueError, in words meant for the policy, for all that is not one SELECT within the bounds.
        """
        if len(text) > MAX_QUERY:
            raise ValueError(f"the query has {len(text)} characters, at most {MAX_QUERY} are allowed")
        columns, rows = self._run(text)
        return _shown(columns, rows)

    def value(self, text: str) -> Value:
        """The first value of the first row; None when there is no row. Raises ValueError as `query` does."""
        return next(iter(self.values(text)), None)

    def values(self, text: str) -> list[Value]:
        """The first value of each row, of MAX_ROWS + 1 rows at most. Raises ValueError as `query` does."""
        _, rows = self._run(text)
        return [row[0] for row in rows]

    def _run(self, text: str) -> tuple[list[str], list[tuple[Value, ...]]]:
        """Column names and at most MAX_ROWS + 1 rows."""
        budget = _Budget()
        self._connection.set_progress_handler(budget.spent, _STEPS_PER_CHECK)
        try:
            cursor = self._connection.execute(text)
            try:
                if cursor.description is None:
                    raise ValueError("that gives no rows; send one SELECT")
                return [column[0] for column in cursor.description], cursor.fetchmany(MAX_ROWS + 1)
            finally:
                cursor.close()
        except (sqlite3.Error, sqlite3.Warning, UnicodeError) as error:
            raise ValueError(_in_words(error, budget)) from None
        except OverflowError:
            raise ValueError("the query holds a number that is too large") from None


class _Budget:
    """What one query may still cost. SQLite asks between instructions and stops at a true answer."""

    def __init__(self) -> None:
        self._checks = MAX_STEPS // _STEPS_PER_CHECK
        self._deadline = time.monotonic() + MAX_SECONDS
        self.exceeded = False

    def spent(self) -> bool:
        self._checks -= 1
        self.exceeded = self._checks < 0 or time.monotonic() > self._deadline
        return self.exceeded


def _signatures(connection: sqlite3.Connection) -> tuple[str, ...]:
    columns = connection.execute(
        "SELECT t.name, group_concat(c.name) FROM sqlite_master t JOIN pragma_table_info(t.name) c "
        "WHERE t.type IN ('table', 'view') AND t.name NOT LIKE 'sqlite~_%' ESCAPE '~' GROUP BY t.rowid ORDER BY t.rowid"
    )
    return tuple(f"{name}({names})" for name, names in columns)


def _authorize(action: int, first: str | None, second: str | None, database: str | None, source: str | None) -> int:
    if action not in _ALLOWED or (action == sqlite3.SQLITE_FUNCTION and second in _FORBIDDEN_FUNCTIONS):
        return sqlite3.SQLITE_DENY
    return sqlite3.SQLITE_OK


def _in_words(error: Exception, budget: _Budget) -> str:
    text = str(error)
    if budget.exceeded:
        return "the query does too much work; make it simpler"
    if "not authorized to use function" in text:
        return f"the function {text.rpartition(' ')[2]} is not allowed here"
    if "not authorized" in text or "authorization denied" in text:
        return "only SELECT is allowed here"
    if "one statement at a time" in text:
        return "send one statement at a time"
    return text


def _shown(columns: list[str], rows: list[tuple[Value, ...]]) -> str:
    if not rows:
        return "(no rows)"
    lines = ["|".join(_text(value) for value in row) for row in rows[:MAX_ROWS]]
    if len(columns) > 1:
        lines.insert(0, "|".join(columns))
    shown = "\n".join(lines)
    if len(shown) > MAX_OUTPUT:
        return f"{shown[:MAX_OUTPUT]}\n(cut off)"
    return f"{shown}\n(more rows are left out)" if len(rows) > MAX_ROWS else shown


def _text(value: Value | bytes) -> str:
    if value is None:
        return "NULL"
    return value.hex() if isinstance(value, bytes) else str(value)
