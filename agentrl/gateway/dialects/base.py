"""What a dialect is. A new one is a file with a `Dialect` in it and a line in `dialects.ALL`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from agentrl.gateway.deltas import Answer, Piece
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.request import TurnRequest

R = TypeVar("R")


@dataclass(frozen=True)
class Responding:
    """What a response needs beside its answers."""

    response_id: str  # that of the first choice's call
    created: int  # unix seconds
    model: str
    token_bytes: Callable[[int], bytes]
    text: Callable[[Sequence[int]], str]  # of prompt ids, control tokens included


class StreamEncoder(Protocol):
    """One streamed response, as bytes of server-sent events. `begin` comes first, then one of `end` and `fail` last."""

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        """`prompt_ids` of the first choice."""
        ...

    def piece(self, choice: int, piece: Piece) -> bytes:
        """b"" where this dialect has nothing to say of the piece."""
        ...

    def end(self, answers: Sequence[Answer]) -> bytes: ...

    def fail(self, refusal: Refusal) -> bytes:
        """The response ends here, and its client must be able to tell that from a good end."""
        ...

    def keep_alive(self) -> bytes:
        """Something without meaning, while nothing comes for long."""
        ...


@dataclass(frozen=True)
class Dialect(Generic[R]):
    """`decode` raises Refusal; R is the decoded request, for `encode` and `stream`.

    A streamed response says the same as `encode` would of the same answers, field by field.
    """

    name: str
    path: str  # from the root of a session: "/v1/chat/completions"
    call_prefix: str  # of the ids that its responses carry, which are their first calls' ids
    decode: Callable[[bytes], tuple[TurnRequest, R]]
    encode: Callable[[Sequence[Answer], R, Responding], bytes]
    stream: Callable[[R, Responding], StreamEncoder]
    error: Callable[[Refusal], bytes]
    request_type: Any = None  # the msgspec type of a request's body, for the OpenAPI document


def event(data: bytes, name: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"
