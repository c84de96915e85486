"""Arrays and trajectories come back exactly, whatever is in them, and small."""

from __future__ import annotations

import itertools
import math
import random
import sqlite3
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import TrajectoryBuilder, boot, task, two_turns

from agentrl.errors import StoreError
from agentrl.store.arrays import pack_floats, pack_ints, unpack
from agentrl.store.base import TRAINED, Settlement
from agentrl.store.codec import decode, encode
from agentrl.store.sql import SqlStore
from agentrl.types import Call, Constraint, Row, Sampling, Segment, Task, Trajectory, VersionSpan

int32 = st.integers(-(2**31), 2**31 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=3)
finite = st.floats(allow_nan=False, allow_infinity=False)
ids = st.lists(st.integers(0, 5) | int32, max_size=12)
spans = st.lists(st.builds(VersionSpan, int32, int32, int32), max_size=3)
scores = st.none() | finite
floats = st.floats(allow_nan=False)

calls = st.builds(
    Call,
    call_id=st.text(),
    prompt_token_ids=ids,
    prompt_digest=st.text(),
    token_ids=ids,
    logprobs=st.none() | st.lists(floats, max_size=12),
    versions=spans,
    finish_reason=st.sampled_from(["stop", "length", "abort"]),
    engine_id=st.text(),
    sampling=st.builds(
        Sampling,
        temperature=finite,
        top_k=int32,
        max_tokens=st.none() | st.integers(1, 9),
        stop=st.lists(st.text(), max_size=2).map(tuple),
        stop_token_ids=st.lists(int32, max_size=2).map(tuple),
        seed=st.none() | st.integers(0, 2**62),
        top_logprobs=st.integers(0, 20),
        constraint=st.none() | st.builds(Constraint, kind=st.sampled_from(["json", "regex"]), value=json_values),
    ),
    segments=st.lists(st.builds(Segment, st.text(), int32, int32), max_size=2),
    messages=st.lists(json_objects, max_size=2),
    conversation=st.text(),
    message=json_objects,
    parent=st.none() | st.integers(-2, 6),
    reward=scores,
    untrainable=st.none() | st.text(),
    started_at=finite,
    ended_at=finite,
    moments=st.lists(st.integers(), max_size=5),
)
rows = st.builds(
    Row,
    token_ids=ids,
    loss_mask=st.lists(st.integers(0, 1) | int32, max_size=12),
    logprobs=st.lists(st.none() | floats, max_size=12),
    versions=spans,
)
trajectories = st.builds(
    Trajectory,
    session_id=st.text(),
    task=st.none() | st.builds(Task, id=st.text(), env_id=st.text(), seed=st.integers(), options=json_objects),
    mode=st.sampled_from(["train", "eval"]),
    stop_reason=st.none() | st.text(),
    reward=scores,
    components=st.dictionaries(st.text(), scores, max_size=3),
    calls=st.lists(calls, max_size=5),
    rows=st.lists(rows, max_size=3),
    dropped=st.dictionaries(st.text(), st.integers(), max_size=3),
    metadata=json_objects.filter(lambda value: "group_id" not in value),
)


@given(trajectories)
def test_any_trajectory_comes_back_exactly(trajectory: Trajectory) -> None:
    """Also those that break an invariant: the store keeps the evidence, the audit judges it."""
    encoded = encode(trajectory)
    assert decode(encoded.header, encoded.calls, encoded.rows) == trajectory


@given(st.lists(int32, max_size=300))
def test_any_ids_come_back(values: list[int]) -> None:
    assert unpack(pack_ints(values)).tolist() == values


@given(st.lists(st.floats() | st.floats(width=32), max_size=300))
def test_any_floats_come_back_to_the_bit(values: list[float]) -> None:
    """NaN counts as NaN; -0.0 keeps its sign."""
    back = unpack(pack_floats(values)).tolist()
    assert [_bits(value) for value in back] == [_bits(value) for value in values]


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


@pytest.mark.parametrize(
    ("values", "blob"),
    [
        ([1, 258], b"i\x01\x00\x00\x00\x02\x01\x00\x00"),
        ([], b"i"),
    ],
)
def test_the_layout_of_ids_is_fixed(values: list[int], blob: bytes) -> None:
    assert pack_ints(values) == blob


def test_float32_is_used_only_when_it_is_exact() -> None:
    assert pack_floats([-0.5]) == b"f" + struct.pack("<f", -0.5)
    assert pack_floats([-0.1]) == b"d" + struct.pack("<d", -0.1)
    assert pack_floats([1e300]) == b"d" + struct.pack("<d", 1e300)


@pytest.mark.parametrize("blob", [b"", b"x123", b"i123", b"I123", pack_ints([7] * 99)[:-3]])
def test_damaged_arrays_are_errors(blob: bytes) -> None:
    with pytest.raises(ValueError, match=r"tag|buffer size|damaged"):
        unpack(blob)


def with_a_row_of_its_own(session_id: str) -> Trajectory:
    """Its calls say otherwise of one token."""
    trajectory = two_turns(session_id).build()
    trajectory.rows[0].logprobs[-1] = -7.5
    return trajectory


def test_a_row_that_follows_from_its_calls_is_not_stored_again() -> None:
    """Of two calls that a row ends like, the one is meant that it follows from."""
    trajectory = TrajectoryBuilder().call([1, 2], [3], after=None, untrainable="aborted").call([1, 2], [3], after=None)
    [row] = encode(trajectory.build()).rows
    assert (row["base"], row["loss_mask"], row["logprobs"]) == (1, b"", b"")


@pytest.mark.parametrize("spoil", ["loss_mask", "logprobs"])
def test_a_row_that_differs_from_its_calls_is_stored_whole(spoil: str) -> None:
    trajectory = two_turns().build()
    getattr(trajectory.rows[0], spoil)[-1] = 0
    encoded = encode(trajectory)
    assert b"" not in (encoded.rows[0]["loss_mask"], encoded.rows[0]["logprobs"])
    assert decode(encoded.header, encoded.calls, encoded.rows).rows == trajectory.rows


def test_a_parent_that_comes_later_does_not_hang_the_store() -> None:
    trajectory = two_turns().build()
    trajectory.calls[0].parent = 1
    encoded = encode(trajectory)
    assert decode(encoded.header, encoded.calls, encoded.rows) == trajectory


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("logprobs", pack_floats([-1.0])), "a row holds 1 logprobs for 32 tokens"),
        (("logprobs", b""), "unknown array tag b''"),
        (("loss_mask", b""), "unknown array tag b''"),
    ],
)
def test_a_damaged_trajectory_is_named(tmp_path: Path, change: tuple[str, bytes], why: str) -> None:
    store = SqlStore.at(tmp_path / "t.db")
    store.save(with_a_row_of_its_own("s7"))
    column, value = change
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute(f"UPDATE rows SET {column} = ?", (value,))
    with pytest.raises(StoreError, match=f"'s7' is damaged: {why}"):
        store.get("s7")


@pytest.mark.parametrize("column", ["components", "dropped", "metadata"])
@pytest.mark.parametrize("value", ["[1]", "null", "7", "[" * 5000 + "]" * 5000])
def test_a_document_of_another_shape_is_damage(tmp_path: Path, column: str, value: str) -> None:
    store = SqlStore.at(tmp_path / "t.db")
    store.save(two_turns("s7").build())
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute(f"UPDATE trajectories SET {column} = ?", (value,))
    with pytest.raises(StoreError, match="'s7' is damaged"):
        store.get("s7")


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("UPDATE calls SET started_at = 'noon'", "trajectory 's7' is damaged"),
        ("UPDATE groups SET task = '[]'", "group 'g' is damaged"),
        ("UPDATE groups SET step = 'x'", "GroupRecord .* is damaged"),
        ("UPDATE settlements SET tokens = x'00'", "Settlement .* is damaged"),
        ("UPDATE swaps SET started_at = 'noon'", "SwapRecord .* is damaged"),
    ],
)
def test_a_column_of_another_type_is_damage(tmp_path: Path, statement: str, named: str) -> None:
    """SQLite keeps any type in any column."""
    store = SqlStore.at(tmp_path / "t.db")
    store.save(two_turns("s7", group_id="g").build())
    store.admit("g", task(), 0)
    store.settle("g", TRAINED, 1, [Settlement(session_id="s7", outcome=TRAINED, step=1, tokens=1)])
    store.record_swap(boot())
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute(statement)
    everything = itertools.chain.from_iterable(
        read() for read in (store.iterate, store.groups, store.settlements, store.swaps)
    )
    with pytest.raises(StoreError, match=named):
        list(everything)


def bytes_per_trajectory(path: Path, build: TrajectoryBuilder, copies: int) -> float:
    """Growth of the whole database file."""
    store = SqlStore.at(path)
    empty = path.stat().st_size
    trajectory = build.build()
    for index in range(copies):
        trajectory.session_id = f"{index:032x}"
        store.save(trajectory)
    store.close()
    return (path.stat().st_size - empty) / copies


def session(turns: int, *, context: int, sampled: int) -> TrajectoryBuilder:
    """Ids of a 150k vocabulary: nearly incompressible."""
    source, builder = random.Random(0), TrajectoryBuilder()
    for _ in range(turns):
        builder.call(
            [source.randrange(150_000) for _ in range(context)], [source.randrange(150_000) for _ in range(sampled)]
        )
    return builder


def test_a_short_session_is_small(tmp_path: Path) -> None:
    """2 calls of 60 tokens and 180 of context: under 3.5 KiB, messages and indexes included."""
    assert bytes_per_trajectory(tmp_path / "t.db", session(2, context=90, sampled=60), 200) < 3.5 * 1024


def test_a_long_session_costs_its_own_length(tmp_path: Path) -> None:
    """50 turns, 20,000 tokens: 2.7 bytes an id, 4 a logprob. Storing every prompt whole would take 1.9 MB for the ids.

    In the file each call has a page of its own, as half a page is just too small for one.
    """
    build = session(50, context=200, sampled=200)
    encoded = encode(build.build())
    columns = [value for entry in (*encoded.calls, *encoded.rows) for value in entry.values()]
    assert sum(len(value) for value in columns if isinstance(value, bytes | str)) < 105_000
    assert bytes_per_trajectory(tmp_path / "t.db", build, 5) < 230_000
