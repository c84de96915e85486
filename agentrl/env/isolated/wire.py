"""What goes between a worker, a guard and an environment: JSON with its length before it. Nothing is unpickled."""

from __future__ import annotations

import socket
from typing import Any, Literal

import orjson
from msgspec import Struct

from agentrl.errors import EnvironmentFault

LENGTH_BYTES = 4
MAX_FRAME = 32 * 2**20
"""Bytes of one request or answer; pictures in messages count."""

READY = b"ready"
"""A nursery's first word: it can be asked for processes."""

NOT_ALONE = b"threads"
"""Its other first word: the import left threads behind, so it cannot be forked, and ends."""


class Caps(Struct, frozen=True, kw_only=True):
    """What one environment may have, all its processes together. Made by the worker, kept to by the guard."""

    memory_bytes: int  # anonymous and shared memory, and what of it is swapped out
    processes: int


class Ended(Struct, frozen=True, kw_only=True):
    """How an environment's processes ended. Made by the guard as its last word, taken by the worker."""

    cause: Literal["exited", "signalled", "memory", "processes", "told"]
    status: int = 0  # exit status or signal number of the environment's own process
    memory_bytes: int = 0  # when it was over a cap
    processes: int = 0
    left: int = 0  # processes that could not be ended in time


def frame(value: Any) -> bytes:
    """Raises TypeError for what is no JSON, ValueError for what is too long."""
    body = orjson.dumps(value)
    if len(body) > MAX_FRAME:
        raise ValueError(f"{len(body):,} bytes, more than the {MAX_FRAME:,} that one answer may have")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def body_length(head: bytes) -> int:
    """Raises EnvironmentFault for bytes that are no frame's head."""
    length = int.from_bytes(head, "big")
    if length > MAX_FRAME:
        raise EnvironmentFault(f"a frame of {length:,} bytes is announced; {MAX_FRAME:,} are the most")
    return length


def receive(connection: socket.socket) -> Any:
    """The next frame's value. Raises EOFError when the other side is gone."""
    return orjson.loads(_exactly(connection, body_length(_exactly(connection, LENGTH_BYTES))))


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 2**20))
        if not part:
            raise EOFError("the other side is gone")
        parts += part
    return bytes(parts)
