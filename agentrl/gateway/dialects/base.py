"""What a dialect is. A new one is a file with a `Dialect` in it and a line in `dialects.ALL`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.turns import TurnRequest
from agentrl.types import Call

R = TypeVar("R")


@dataclass(frozen=True)
class Dialect(Generic[R]):
    """`decode` raises Refusal; `encode` takes the answered call, the decoded request and the served model's name."""

    name: str
    path: str  # below /v1
    call_prefix: str  # of the ids that its answers carry, which are the calls' ids
    decode: Callable[[bytes], tuple[TurnRequest, R]]
    encode: Callable[[Call, R, Answering], bytes]
    error: Callable[[Refusal], bytes]


@dataclass(frozen=True)
class Answering:
    """What an answer needs beside the call."""

    model_name: str
    token_bytes: Callable[[int], bytes]
