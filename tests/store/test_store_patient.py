"""A driver's store waits for a database that does not take a write for now, and not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from trajectories import boot

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store.database import Database
from agentrl.store.patient import PatientStore
from agentrl.types import Task

TASK = Task(id="t", env_id="e")


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """What the next transactions meet."""
    found: list[Exception] = []
    write = Database.write

    def refusing(self: Database, doing: str):
        if found:
            raise found.pop(0)
        return write(self, doing)

    monkeypatch.setattr(Database, "write", refusing)
    return found


FULL = StoreUnavailable("settling group 'g' failed: database or disk is full")


def test_what_the_disk_had_no_room_for_is_written_when_it_has(tmp_path: Path, refusals: list[Exception]):
    store = PatientStore(f"sqlite:///{tmp_path / 't.db'}")
    for write in (
        lambda: store.admit("g", TASK, 0),
        lambda: store.record_swap(boot("engine-0", 3)),
        lambda: store.settle("g", "stale", None),
    ):
        refusals += [FULL, FULL]
        write()
    assert [(group.group_id, group.outcome) for group in store.groups()] == [("g", "stale")]
    assert [found.version for found in store.swaps()] == [3]
    store.close()


def test_it_ends_in_the_databases_words(tmp_path: Path, refusals: list[Exception]):
    store = PatientStore(f"sqlite:///{tmp_path / 't.db'}", waits_s=0.0)
    refusals.append(FULL)
    with pytest.raises(StoreUnavailable, match="disk is full"):
        store.admit("g", TASK, 0)
    store.close()


def test_what_will_never_be_taken_is_refused_at_once(tmp_path: Path, refusals: list[Exception]):
    store = PatientStore(f"sqlite:///{tmp_path / 't.db'}")
    store.admit("g", TASK, 0)
    with pytest.raises(StoreError, match="admitted already"):
        store.admit("g", TASK, 0)
    store.close()
