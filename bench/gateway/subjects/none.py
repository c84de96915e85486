"""No gateway: the client talks to the engine and asks it for the tokens itself."""

from __future__ import annotations

import sys
from pathlib import Path

from bench.gateway.http1 import Request
from bench.gateway.processes import Command
from bench.gateway.subjects.base import CHAT, Route


class NoGateway:
    name = "none"
    title = "no gateway"
    python = Path(sys.executable)
    distribution = ""
    fields = b',"logprobs":true,"top_logprobs":0,"return_token_ids":true'
    closed_before_read = False

    def server(self, engine_url: str, port: int, folder: Path) -> Command | None:
        return None

    def open(self, episode: int) -> Request | None:
        return None

    def route(self, episode: int, opened: bytes) -> Route:
        return Route(str(episode), CHAT)

    def close(self, route: Route) -> Request | None:
        return None

    def read(self, route: Route) -> Request | None:
        return None

    def recorded(self, answer: bytes) -> tuple[int, int, int]:
        raise ValueError("nothing is recorded without a gateway")
