"""One open database of the store: its transactions, its errors in words, the check of the schema version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store import connect, schema
from agentrl.store.at_once import AtOnce
from agentrl.store.file_lock import FileLock
from agentrl.store.plain import Plain, transaction

CREATING = 0x61_67_65_6E_74_72_6C
"""PostgreSQL: the advisory lock of whoever creates the tables ("agentrl")."""


class Conflict(StoreError):
    """A key was taken, perhaps a moment ago by another writer: read again, and decide again."""


class Database:
    """One database by URL, with the tables of `agentrl.store.schema` in it. Safe to share between threads."""

    def __init__(self, url: str, *, create: bool) -> None:
        self._engine = connect.open_engine(url, create=create)
        self._driver: Any = self._engine.dialect.loaded_dbapi
        self._postgresql = self._engine.dialect.name == "postgresql"
        self._sqlite = self._engine.dialect.name == "sqlite"
        self._snapshots = self._engine
        if self._postgresql:
            self._snapshots = self._engine.execution_options(isolation_level="REPEATABLE READ")
        self.layout = schema.SCHEMA_VERSION  # of the store, as far as this process knows
        self._turn = threading.Lock()
        self._lock = FileLock(Path(f"{self._engine.url.database}-lock")) if self._sqlite else None
        self._at_once = self._way_at_once()
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
    def write_plainly(self, doing: str) -> Iterator[Plain]:
        """As `write`, past SQLAlchemy: for what every episode writes."""
        with self._reported(doing), self._in_turn(doing), transaction(self._engine) as plain:
            yield plain

    def write_at_once(self, work: Callable[[Plain], None]) -> bool:
        """As `write_plainly`, if nobody has to be waited for; False, with nothing written, otherwise. Raises nothing of
        the database's."""
        return self._at_once is not None and self._at_once.write(work)

    def _way_at_once(self) -> AtOnce | None:
        """None where the URL says more of the database than where its file is."""
        url = self._engine.url
        if self._lock is None or url.query:
            return None
        return AtOnce(Path(str(url.database)).absolute(), self._turn, self._lock)

    @contextmanager
    def _in_turn(self, doing: str) -> Iterator[None]:
        """One writing thread and process at a time where the database takes one: SQLite would let the others sleep for
        ten times as long as a transaction takes."""
        if self._lock is None:
            yield
            return
        if not self._turn.acquire(timeout=connect.BUSY_TIMEOUT_S):
            raise StoreUnavailable(
                f"{doing} in {self.where} failed: other threads write since {connect.BUSY_TIMEOUT_S:g} s"
            )
        try:
            with self._lock.held(connect.BUSY_TIMEOUT_S):
                yield
        except OSError as error:
            raise StoreUnavailable(f"{doing} in {self.where} failed: {error}") from error
        finally:
            self._turn.release()

    def raise_layout(self) -> None:
        """Before what only the present layout has is written: who cannot read that refuses the store from now on."""
        if self.layout == schema.SCHEMA_VERSION:
            return
        key, version = schema.meta.c.key, str(schema.SCHEMA_VERSION)
        with self.write("raising the layout") as connection:
            self._alone(connection)
            for table in schema.metadata.sorted_tables:
                there = {column["name"] for column in inspect(connection).get_columns(table.name)}
                for column in table.columns:
                    if column.name not in there:  # another process may have been here
                        kind = column.type.compile(connection.dialect)
                        connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))
            connection.execute(schema.meta.update().where(key == "schema_version").values(value=version))
        self.layout = schema.SCHEMA_VERSION

    def _alone(self, connection: Connection) -> None:
        """Until the transaction ends, nobody else changes the tables."""
        if self._postgresql:
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": CREATING})

    def close(self) -> None:
        self._engine.dispose()
        if self._at_once is not None:
            self._at_once.close()
        if self._lock is not None:
            self._lock.close()

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            raise _kind(error)(f"{doing} in {self.where} failed: {cause}") from error
        except self._driver.Error as error:
            kinds = {self._driver.OperationalError: StoreUnavailable, self._driver.IntegrityError: Conflict}
            kind = next((kind for of, kind in kinds.items() if isinstance(error, of)), StoreError)
            raise kind(f"{doing} in {self.where} failed: {error}") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{doing} in {self.where} failed: the file is damaged: {error}") from error
        except UnicodeEncodeError as error:
            raise StoreError(f"{doing} in {self.where} failed: it has text that is not Unicode: {error}") from error

    def _check_schema(self, *, create: bool) -> None:
        version = self._schema_version()
        if version is None and create:
            with self.write("creating the tables") as connection:
                self._alone(connection)
                schema.metadata.create_all(connection)
                if connection.execute(select(schema.meta.c.value)).first() is None:
                    row = {"key": "schema_version", "value": str(schema.SCHEMA_VERSION)}
                    connection.execute(schema.meta.insert(), row)
            version = self._schema_version()
        if version is None:
            raise StoreError(f"{self.where} holds no trajectory store")
        if version not in schema.READABLE:
            readable = ", ".join(sorted(schema.READABLE))
            raise StoreError(
                f"{self.where} has store layout {version}, this agentrl reads {readable} and writes "
                f"{schema.SCHEMA_VERSION}; open it with the agentrl that wrote it, or start a new run directory"
            )
        self.layout = int(version)

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
