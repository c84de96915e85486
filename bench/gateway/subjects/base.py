"""What the benchmark knows of a gateway under test. One file for each; all of it is pure, the I/O is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from msgspec import Struct

from bench.gateway.http1 import Request
from bench.gateway.processes import ROOT, Command

PEERS = ROOT / "bench" / ".peers"
CHAT = "/v1/chat/completions"


class Route(Struct, frozen=True):
    """Where an episode's model calls go. `session` is the gateway's name for it, `origin` where it says that it is:
    empty for where it was opened.
    """

    session: str
    path: str
    headers: bytes = b""
    origin: str = ""


class Subject(Protocol):
    """A gateway, or none. `open` and `close` are part of the measured time, though not counted as requests."""

    name: str
    """In options and in the results."""
    title: str
    """In the table."""
    python: Path
    """The interpreter of the environment that it is installed in."""
    distribution: str
    """What it is called in its package index, for its version."""
    fields: bytes
    """What its clients add to a request to have what a trainer needs; each field with a comma before it."""
    closed_before_read: bool
    """Whether an episode's recording is read after `close` or before."""

    def server(self, engine_url: str, port: int, folder: Path) -> Command | None: ...

    def open(self, episode: int) -> Request | None:
        """Asks for a session."""

    def route(self, episode: int, opened: bytes) -> Route: ...

    def close(self, route: Route) -> Request | None:
        """Ends the session: the gateway may let go of it."""

    def read(self, route: Route) -> Request | None:
        """Asks for the recording of an episode."""

    def recorded(self, answer: bytes) -> tuple[int, int, int]:
        """(calls, prompt ids, sampled ids with a logprob) in a recording. Raises ValueError for a broken one."""
