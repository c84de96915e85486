"""OpenEnv's capture server, configured as its own `CaptureServer` configures it; it records in memory only."""

from __future__ import annotations

from pathlib import Path

import orjson

from bench.gateway.http1 import Request
from bench.gateway.processes import Command
from bench.gateway.subjects.base import CHAT, PEERS, Route

SERVE = """
import sys, uvicorn
from openenv.core.harness.capture.server import create_app
app = create_app(llm_url=sys.argv[1], model="policy", max_output_tokens=8192, capture_level="tokens")
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[2]), log_level="warning")
"""


class OpenEnv:
    """A session's id is its API key. A finished one is deleted, so that the server does not fill up."""

    name = "openenv"
    title = "OpenEnv capture server"
    python = PEERS / "openenv/bin/python"
    distribution = "openenv"
    fields = b""
    closed_before_read = False

    def server(self, engine_url: str, port: int, folder: Path) -> Command | None:
        return Command([str(self.python), "-c", SERVE, engine_url, str(port)])

    def open(self, episode: int) -> Request | None:
        return Request("POST", "/sessions", b"{}")

    def route(self, episode: int, opened: bytes) -> Route:
        session = orjson.loads(opened)["session_id"]
        return Route(session, CHAT, f"authorization: Bearer {session}\r\n".encode())

    def close(self, route: Route) -> Request | None:
        return Request("DELETE", f"/sessions/{route.session}")

    def read(self, route: Route) -> Request | None:
        return Request("GET", f"/sessions/{route.session}/rollout")

    def recorded(self, answer: bytes) -> tuple[int, int, int]:
        rollout = orjson.loads(answer)
        if not rollout["trainable"]:
            raise ValueError(f"the rollout is not trainable: {rollout['validation']}")
        turns = rollout["turns"]
        return len(turns), sum(turn["n_prompt"] for turn in turns), rollout["stats"]["n_trainable_tokens"]
