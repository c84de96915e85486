"""The stores under test; one PostgreSQL server for all tests, started by the first that needs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, running

from agentrl.store.base import TrajectoryStore
from agentrl.store.memory import MemoryStore
from agentrl.store.sql import SqlStore


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that does not exist yet, or is empty."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'trajectories.db'}"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.database()


@pytest.fixture(params=["sqlite", "postgresql", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TrajectoryStore]:
    opened: TrajectoryStore
    match request.param:
        case "memory":
            opened = MemoryStore()
        case "sqlite":
            opened = SqlStore.at(tmp_path / "trajectories.db")
        case "postgresql":
            opened = SqlStore(request.getfixturevalue("postgres").database())
    yield opened
    opened.close()
