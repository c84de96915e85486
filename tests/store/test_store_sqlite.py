"""What only a file can promise: survival, sharing between processes, refusal of what is not ours."""

from __future__ import annotations

import itertools
import signal
import sqlite3
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from scripts import start
from trajectories import task, two_turns

from agentrl.errors import StoreError, StoreUnavailable
from agentrl.store import connect, schema
from agentrl.store.arrays import pack_floats, pack_mask
from agentrl.store.sql import SqlStore

WRITER = """
import sys
from pathlib import Path
from trajectories import two_turns
from agentrl.store.sql import SqlStore

store = SqlStore.at(Path(sys.argv[1]))
print("open", flush=True)
for index in range(int(sys.argv[3])):
    session_id = f"{sys.argv[2]}-{index}"
    store.save(two_turns(session_id).build(finished_at=index))
    print(session_id, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return start(WRITER, path, name, count)


def test_what_was_saved_is_there_after_reopening(tmp_path: Path) -> None:
    trajectory = two_turns().build()
    first = SqlStore.at(tmp_path / "t.db")
    first.save(trajectory)
    first.close()
    assert SqlStore.at(tmp_path / "t.db", create=False).get("s0") == trajectory


def test_kill_9_loses_nothing_that_save_returned_for(tmp_path: Path) -> None:
    """The writer says each id after save(); it dies in the middle, without closing anything."""
    process = writer(tmp_path / "t.db", "w", 1_000_000)
    assert process.stdout is not None
    said = [line.strip() for line in itertools.islice(process.stdout, 41)][1:]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.read().split()
    assert process.wait(timeout=30) == -signal.SIGKILL
    process.stdout.close()

    store = SqlStore.at(tmp_path / "t.db", create=False)
    assert len(said) >= 40
    for session_id in said:
        assert store.get(session_id).calls == two_turns(session_id).build().calls
    assert store.count() - len(said) in (0, 1)  # one more may be durable whose word did not get out
    store.save(two_turns("after").build())


def test_processes_share_a_store_from_its_creation_on(tmp_path: Path) -> None:
    """Three processes create it together and write, a fourth (this one) reads meanwhile and writes too."""
    path = tmp_path / "t.db"
    processes = [writer(path, name, 40) for name in "abc"]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    store = SqlStore.at(path)
    counts = []
    for index in range(40):
        store.save(two_turns(f"d-{index}").build())
        counts.append(sum(1 for _ in store.iterate()) if index % 10 == 0 else store.count())
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert counts == sorted(counts)
    assert {t.session_id for t in store.iterate()} == {f"{name}-{index}" for name in "abcd" for index in range(40)}


def test_iterate_holds_one_trajectory_at_a_time(tmp_path: Path) -> None:
    """300 trajectories of 10,000 tokens would take hundreds of MB as Python lists; one takes about 1."""
    store = SqlStore.at(tmp_path / "t.db")
    builder = two_turns()
    trajectory = builder.call(range(5_000), 5_000).build()
    for index in range(30):
        trajectory.session_id = f"s{index}"
        store.save(trajectory)

    def peak(limit: int) -> int:
        tracemalloc.start()
        for _ in itertools.islice(store.iterate(), limit):
            pass
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(1)
    assert peak(30) < 3 * peak(1)


def test_a_snapshot_has_no_half_saved_trajectory(tmp_path: Path) -> None:
    """A save that fails at its last statement leaves no header behind."""
    store = SqlStore.at(tmp_path / "t.db")
    trajectory = two_turns().build()
    trajectory.rows[0].loss_mask = None  # type: ignore[assignment]
    with pytest.raises(StoreError, match="cannot be stored"):
        store.save(trajectory)
    trajectory = two_turns().build()

    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    other.execute("CREATE TRIGGER full BEFORE INSERT ON rows BEGIN SELECT RAISE(ABORT, 'no more room'); END")
    with pytest.raises(StoreError, match=r"saving trajectory 's0' in sqlite.*t\.db failed: no more room"):
        store.save(trajectory)
    other.execute("DROP TRIGGER full")
    other.close()
    assert store.count() == 0
    store.save(trajectory)
    assert store.get("s0") == trajectory


def test_a_writer_waits_its_time_and_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.05)
    store = SqlStore.at(tmp_path / "t.db")
    other = sqlite3.connect(tmp_path / "t.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match=r"saving trajectory 's0' in sqlite.*t\.db failed: database is locked"):
        store.save(two_turns().build())
    assert store.count() == 0  # readers go on
    other.execute("ROLLBACK")
    other.close()
    store.save(two_turns().build())


def test_a_thread_waits_its_time_for_another_and_then_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "BUSY_TIMEOUT_S", 0.05)
    store = SqlStore.at(tmp_path / "t.db")
    with store._database.write("holding"), ThreadPoolExecutor(1) as pool:
        saving = pool.submit(store.save, two_turns().build())
        with pytest.raises(StoreUnavailable, match=r"saving trajectory 's0' in .* other threads write since 0\.05 s"):
            saving.result(timeout=30)
    store.save(two_turns().build())


def layout_of(path: Path) -> str:
    with sqlite3.connect(path) as connection:
        return str(connection.execute("SELECT value FROM meta").fetchone()[0])


def set_layout(path: Path, layout: str) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = ?", (layout,))


@pytest.mark.parametrize("layout", ["2", "3"])
def test_an_older_store_is_read_and_becomes_one_of_the_present_layout_with_its_next_trajectory(
    tmp_path: Path, layout: str
) -> None:
    """In layout 2 every row has its mask and logprobs; before 4, calls have no moments."""
    store, path = SqlStore.at(tmp_path / "t.db"), tmp_path / "t.db"
    trajectory = two_turns("old").build()
    store.save(trajectory)
    store.close()
    with sqlite3.connect(path) as connection:
        values = [value for value in trajectory.rows[0].logprobs if value is not None]
        written = (pack_mask(trajectory.rows[0].loss_mask), pack_floats(values))
        connection.execute("UPDATE rows SET loss_mask = ?, logprobs = ?", written)
        connection.execute("ALTER TABLE calls DROP COLUMN moments")
    set_layout(path, layout)

    reader = SqlStore.at(path, create=False)
    assert reader.get("old") == trajectory
    reader.set_reward("old", 0.5, {})
    assert layout_of(path) == layout
    writer, late = SqlStore.at(path), SqlStore.at(path)
    timed = two_turns("new").build()
    timed.calls[0].moments = [5, 70]
    writer.save(timed)
    assert layout_of(path) == "4"
    assert writer.get("new") == timed
    late.save(two_turns("newer").build())
    assert [each.session_id for each in reader.iterate()] == ["new", "newer", "old"]


def test_an_older_store_has_a_place_for_the_drivers_position_and_stays_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    SqlStore.at(path).close()
    set_layout(path, "2")
    store = SqlStore.at(path)
    store.admit("g0", task(), 0, position=b'{"next_group":1}')
    assert (layout_of(path), SqlStore.at(path, create=False).position()) == ("2", b'{"next_group":1}')


@pytest.mark.parametrize("layout", ["1", "99"])
def test_a_store_of_another_layout_is_refused(tmp_path: Path, layout: str) -> None:
    SqlStore.at(tmp_path / "t.db").close()
    set_layout(tmp_path / "t.db", layout)
    with pytest.raises(StoreError, match=f"has store layout {layout}, this agentrl .* writes {schema.SCHEMA_VERSION}"):
        SqlStore.at(tmp_path / "t.db")


def test_what_is_not_a_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be read as the header of one " * 20)
    before = text.read_bytes()
    with pytest.raises(StoreError, match=r"notes\.txt failed: file is not a database"):
        SqlStore.at(text)
    assert text.read_bytes() == before

    with sqlite3.connect(tmp_path / "other.db") as connection:
        connection.execute("CREATE TABLE rows (id INTEGER)")
    with pytest.raises(StoreError, match="holds tables of something else: rows"):
        SqlStore.at(tmp_path / "other.db")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("sqlite://", "names no file; use .*MemoryStore"),
        ("sqlite:///:memory:", "names no file"),
        ("trajectories.db", "is not a SQLAlchemy URL; one looks like sqlite:///"),
        ("sqlite:////nowhere/at/all/t.db", "unable to open database file"),
        ("oracel://h/db", "driver of store URL oracel://h/db cannot be loaded: .*oracel"),
        ("oracle://u:secret@h/db", r"driver of store URL oracle://u:\*\*\*@h/db cannot be loaded"),
    ],
)
def test_a_bad_url_is_named(url: str, named: str) -> None:
    with pytest.raises(StoreError, match=named):
        SqlStore(url)


def test_a_damaged_table_of_contents_is_named(tmp_path: Path) -> None:
    SqlStore.at(tmp_path / "t.db").close()
    data = (tmp_path / "t.db").read_bytes()
    (tmp_path / "t.db").write_bytes(data.replace(b"tablesettlements", b"table\xff\xfettlements"))
    with pytest.raises(StoreError, match="the file is damaged"):
        SqlStore.at(tmp_path / "t.db")


def test_reading_never_creates_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store at"):
        SqlStore.at(tmp_path / "t.db", create=False)
    with sqlite3.connect(tmp_path / "empty.db") as connection:
        connection.execute("CREATE TABLE other (id INTEGER)")
    with pytest.raises(StoreError, match="holds no trajectory store"):
        SqlStore.at(tmp_path / "empty.db", create=False)
    assert not (tmp_path / "t.db").exists()
