"""From a URL to an SQLAlchemy engine that keeps the store's promises: SQLite and PostgreSQL.

Writers read before they write. SQLite's take the one write lock at once, so nothing changes in between. PostgreSQL's
run side by side: `agentrl.store.sql` locks the rows it decides by, unique keys refuse what came a moment earlier, and
the loser decides again (`Conflict`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from agentrl.errors import StoreError

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for another's transaction before it gives up with StoreUnavailable."""
CONNECT_TIMEOUT_S = 10
WAL_PAGES = 4000
"""SQLite: pages (16 MB) after which the WAL is copied into the database; most of them were written again by then."""
STATEMENT_TIMEOUT_S = 120
"""PostgreSQL: the longest that one statement may run."""
LOST_AFTER_S = 30
"""PostgreSQL: a server whose host acknowledges nothing for so long is lost."""


def open_engine(url: str, *, create: bool) -> Engine:
    """Raises StoreError for a URL that is none, that names no file, or whose driver is not installed."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(
            f"store URL {url!r} is not a SQLAlchemy URL; one looks like sqlite:///runs/demo/trajectories.db"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        return _sqlite(parsed, create=create)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    try:
        return _postgresql(parsed) if parsed.get_backend_name() == "postgresql" else create_engine(parsed)
    except (ArgumentError, ImportError) as error:
        hint = "; pip install 'agentrl[postgres]'" if "psycopg" in str(error) else ""
        driver = parsed.render_as_string(hide_password=True)
        raise StoreError(f"the database driver of store URL {driver} cannot be loaded: {error}{hint}") from error


def _postgresql(url: URL) -> Engine:
    """What the URL's query sets itself is left as it is."""
    limits = f"-c lock_timeout={BUSY_TIMEOUT_S:g}s -c statement_timeout={STATEMENT_TIMEOUT_S}s"
    settings: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT_S, "options": limits}
    if url.drivername == "postgresql+psycopg":
        settings["tcp_user_timeout"] = LOST_AFTER_S * 1000
    settings = {name: value for name, value in settings.items() if name not in url.query}
    return create_engine(url, pool_pre_ping=True, connect_args=settings)


def _sqlite(url: URL, *, create: bool) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreError(
            f"store URL {str(url)!r} names no file; use agentrl.store.memory.MemoryStore for a store in memory"
        )
    if not create and not Path(str(url.database)).is_file():
        raise StoreError(f"there is no store at {url.database}")
    engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: object) -> None:
    """WAL lets readers and one writer work side by side. With `synchronous=NORMAL` a commit is written to the WAL file
    before it returns, so it survives kill -9 of the process; only a power cut can take the last commits with it, and it
    never damages the file. FULL would add one fsync to every finished episode."""
    connection.isolation_level = None  # transactions are begun below, not guessed from the statement
    pragmas = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", f"wal_autocheckpoint={WAL_PAGES}")
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("agentrl_write", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
