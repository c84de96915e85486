"""The tables of the trajectory store, and the version of their layout.

Documents (task, message, sampling …) are JSON text so that any SQL client can read them; token arrays are the blobs
of `agentrl.store.codec`.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    DDL,
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    event,
)

SCHEMA_VERSION = 4
"""Raised by every change of layout or codec; a store of a version that is not `READABLE` is refused when it is opened.

Since 3, a row's mask and logprobs that follow from its calls are not stored (`codec.FOLLOWS`). A column that came later
than 2 says since when (`SINCE`); older stores do not have it.
"""
READABLE = {"2", "3", "4"}
"""A store of an older one of these becomes one of the present version with the first trajectory that is saved to it."""
SINCE = "since"
"""In a column's `info`: the first layout that has it. Such a column is nullable."""


def columns(table: Table, layout: int) -> list[Column[Any]]:
    """Those that a store of this layout has."""
    return [column for column in table.columns if column.info.get(SINCE, 0) <= layout]


_ID = Text().with_variant(Text(collation="C"), "postgresql")
"""In the same order in every database: by code points."""
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")  # there it has to be INTEGER, which has 64 bits

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", Text, primary_key=True),
    Column("value", Text, nullable=False),
)

trajectories = Table(
    "trajectories",
    metadata,
    Column("session_id", _ID, primary_key=True),
    Column("group_id", _ID),  # metadata["group_id"], lifted for look-ups
    Column("mode", Text, nullable=False),
    Column("stop_reason", Text),
    Column("reward", Double),
    Column("components", Text, nullable=False),
    Column("task", Text),
    Column("dropped", Text, nullable=False),
    Column("metadata", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("finished_at", Double, nullable=False),
    Index("trajectories_in_order", "finished_at", "session_id"),
    Index("trajectories_by_group", "group_id"),
)

calls = Table(
    "calls",
    metadata,
    Column("session_id", _ID, ForeignKey("trajectories.session_id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("call_id", Text, nullable=False),
    Column("engine_id", Text, nullable=False),
    Column("parent", Integer),
    Column("base", Integer),  # the call whose prompt + sample this prompt starts like
    Column("kept", Integer, nullable=False),  # how many ids of it are shared
    Column("prompt_tail", LargeBinary, nullable=False),  # the ids after them
    Column("prompt_digest", Text, nullable=False),
    Column("token_ids", LargeBinary, nullable=False),
    Column("logprobs", LargeBinary),
    Column("versions", Text, nullable=False),  # [[version, start, end], …]
    Column("segments", Text, nullable=False),  # [[engine_id, start, end], …]
    Column("finish_reason", Text, nullable=False),
    Column("sampling", Text, nullable=False),  # the fields that are not neutral
    Column("messages", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("conversation", Text, nullable=False),
    Column("reward", Double),
    Column("untrainable", Text),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("moments", Text, info={SINCE: 4}),  # JSON
)

rows = Table(
    "rows",
    metadata,
    Column("session_id", _ID, ForeignKey("trajectories.session_id"), primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("base", Integer),  # the call whose prompt + sample are the ids; null when token_ids holds them
    Column("token_ids", LargeBinary),
    Column("loss_mask", LargeBinary, nullable=False),  # this and the next are empty where they follow from the calls
    Column("logprobs", LargeBinary, nullable=False),  # of the tokens that have one
    Column("has_logprob", LargeBinary),  # null when it equals loss_mask
    Column("versions", Text, nullable=False),
)

groups = Table(
    "groups",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("group_id", _ID, nullable=False, unique=True),
    Column("task", Text, nullable=False),
    Column("admitted_at_version", Integer, nullable=False),
    Column("outcome", Text),
    Column("step", Integer),
)

settlements = Table(
    "settlements",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("session_id", _ID, nullable=False, unique=True),
    Column("group_id", _ID, ForeignKey("groups.group_id"), nullable=False),
    Column("outcome", Text, nullable=False),
    Column("step", Integer, nullable=False),
    Column("tokens", Integer, nullable=False),
)

swaps = Table(
    "swaps",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("engine_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("mode", Text, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("finished_at", Double, nullable=False),
    Column("digest", Text, nullable=False),
)

journal = Table(
    "journal",
    metadata,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    Column("session_id", _ID, nullable=False),
    Column("owner", _ID, nullable=False),
    Column("data", LargeBinary, nullable=False),  # one event (`agentrl.gateway.journal`)
    Index("journal_by_session", "session_id", "owner"),
)
# PostgreSQL would try to compress each event, which more than halves what it takes a second.
_NOT_COMPRESSED = DDL("ALTER TABLE journal ALTER COLUMN data SET STORAGE EXTERNAL")
event.listen(journal, "after_create", _NOT_COMPRESSED.execute_if(dialect="postgresql"))
