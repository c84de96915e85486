"""One open database of the store: its transactions, its errors in words, the check of the schema version."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store import connect, schema

CREATING = 0x61_67_65_6E_74_72_6C
"""PostgreSQL: the advisory lock of whoever creates the tables ("agentrl")."""


class Conflict(StoreError):
    """A key was taken, perhaps a moment ago by another writer: read again, and decide again."""


class Database:
    """One database by URL, with the tables of `agentrl.store.schema` in it. Safe to share between threads."""

    def __init__(self, url: str, *, create: bool) -> None:
        self._engine = connect.open_engine(url, create=create)
        self._postgresql = self._engine.dialect.name == "postgresql"
        self._snapshots = self._engine
        if self._postgresql:
            self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self._turn = threading.Lock()
        self.where = self._engine.url.render_as_string(hide_password=True)
        try:
            self._check_schema(create=create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self, doing: str) -> Iterator[Connection]:
        """A consistent snapshot. Raises StoreError (StoreUnavailable if it may pass), `doing` in its message."""
        with self._reported(doing), self._snapshots.connect() as connection:
            yield connection

    @contextmanager
    def write(self, doing: str) -> Iterator[Connection]:
        """A transaction that is durable when the block ends and undone when it raises. Raises StoreError.

        SQLite takes its write lock at once, so that what the block reads cannot change before it writes. On PostgreSQL
        another writer may come in between: lock what you read (`with_for_update`), and expect Conflict.
        """
        with self._reported(doing), self._in_turn(doing), self._engine.connect() as connection:
            connection = connection.execution_options(agentrl_write=True)
            with connection.begin():
                yield connection

    @contextmanager
    def _in_turn(self, doing: str) -> Iterator[None]:
        """One writing thread at a time where the database takes one: it would let the others poll for its lock."""
        if self._postgresql:
            yield
            return
        if not self._turn.acquire(timeout=connect.BUSY_TIMEOUT_S):
            raise StoreUnavailable(
                f"{doing} in {self.where} failed: other threads write since {connect.BUSY_TIMEOUT_S:g} s"
            )
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise _kind(error)(f"{doing} in {self.where} failed: {cause}") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{doing} in {self.where} failed: the file is damaged: {error}") from error
        except UnicodeEncodeError as error:
            raise StoreError(f"{doing} in {self.where} failed: it has text that is not Unicode: {error}") from error

    def _check_schema(self, *, create: bool) -> None:
        version = self._schema_version()
        if version is None and create:
            with self.write("creating the tables") as connection:
                if self._postgresql:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATING})
                schema.metadata.create_all(connection)
                if connection.execute(select(schema.meta.c.value)).first() is None:
                    row = {"key": "schema_version", "value": str(schema.SCHEMA_VERSION)}
                    connection.execute(schema.meta.insert(), row)
            version = self._schema_version()
        if version is None:
            raise StoreError(f"{self.where} holds no trajectory store")
        if version != str(schema.SCHEMA_VERSION):
            raise StoreError(
                f"{self.where} has store layout {version}, this agentrl reads and writes {schema.SCHEMA_VERSION}; "
                "open it with the agentrl that wrote it, or start a new run directory"
            )

    def _schema_version(self) -> str | None:
        """None for a database without our tables. Raises StoreError for one that holds something else."""
        with self.read("opening the store") as connection:
            names = set(inspect(connection).get_table_names())
            if schema.meta.name not in names:
                if names & set(schema.metadata.tables):
                    raise StoreError(f"{self.where} holds tables of something else: {', '.join(sorted(names))}")
                return None
            query = select(schema.meta.c.value).where(schema.meta.c.key == "schema_version")
            return connection.execute(query).scalar_one_or_none()


def _kind(error: SQLAlchemyError) -> type[StoreError]:
    """Locked, full or out of reach may pass; a value or a statement that the database will never take does not."""
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if lost or isinstance(error, OperationalError | NoConnection):
        return StoreUnavailable
    return Conflict if isinstance(error, IntegrityError) else StoreError
