"""Opens a database for the store: transactions, SQLite's settings, the check of the schema version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, select
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnection

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store import schema

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another process's transaction before it gives up with StoreError."""


class Database:
    """One database by URL, with the tables of `agentrl.store.schema` in it. Safe to share between threads."""

    def __init__(self, url: str, *, create: bool) -> None:
        self._engine = _engine(url, create=create)
        self.where = self._engine.url.render_as_string(hide_password=True)
        try:
            self._check_schema(create=create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self, doing: str) -> Iterator[Connection]:
        """A consistent snapshot. Raises StoreError (StoreUnavailable if it may pass), `doing` in its message."""
        with self._reported(doing), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def write(self, doing: str) -> Iterator[Connection]:
        """A transaction that is durable when the block ends and undone when it raises. Raises StoreError.

        SQLite takes its write lock at once, so that what the block reads cannot change before it writes.
        """
        with self._reported(doing), self._engine.connect() as connection:
            connection = connection.execution_options(agentrl_write=True)
            with connection.begin():
                yield connection

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            cause = getattr(error, "orig", None) or error
            kind = StoreUnavailable if _may_pass(error) else StoreError
            raise kind(f"{doing} in {self.where} failed: {cause}") from error
        except UnicodeDecodeError as error:
            raise StoreError(f"{doing} in {self.where} failed: the file is damaged: {error}") from error

    def _check_schema(self, *, create: bool) -> None:
        version = self._schema_version()
        if version is None and create:
            with self.write("creating the tables") as connection:
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


def _may_pass(error: SQLAlchemyError) -> bool:
    """Locked, full, out of reach; not a value or a statement that the database will never take."""
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    return lost or isinstance(error, OperationalError | NoConnection)


def _engine(url: str, *, create: bool) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(
            f"store URL {url!r} is not a SQLAlchemy URL; one looks like sqlite:///runs/demo/trajectories.db"
        ) from error
    if parsed.get_backend_name() != "sqlite":
        try:
            return create_engine(parsed, pool_pre_ping=True)
        except (ArgumentError, ImportError) as error:
            driver = parsed.render_as_string(hide_password=True)
            raise StoreError(f"the database driver of store URL {driver} cannot be loaded: {error}") from error
    if parsed.database in (None, "", ":memory:"):
        raise StoreError(f"store URL {url!r} names no file; use agentrl.store.memory.MemoryStore for a store in memory")
    if not create and not Path(str(parsed.database)).is_file():
        raise StoreError(f"there is no store at {parsed.database}")
    engine = create_engine(parsed, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: object) -> None:
    """WAL lets readers and one writer work side by side. With `synchronous=NORMAL` a commit is written to the WAL file
    before it returns, so it survives kill -9 of the process; only a power cut can take the last commits with it, and it
    never damages the file. FULL would add one fsync to every finished episode."""
    connection.isolation_level = None  # transactions are begun below, not guessed from the statement
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("agentrl_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
