"""agentrl's gateway as `agentrl serve` starts it, with its trajectories in SQLite on disk.

Clients do what rollout workers do: the calls of a session, its end too, go to the worker that its `base_url` names;
opening and reading go to the public port.
"""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from agentrl.assets import EMBEDDED
from bench.gateway.http1 import Request
from bench.gateway.processes import Command
from bench.gateway.subjects.base import Route

ADMIN_KEY = "bench-admin-key"
ADMIN = f"authorization: Bearer {ADMIN_KEY}\r\n".encode()


class Agentrl:
    """By default with one worker for each of the two cores that the benchmark is meant for."""

    python = Path(sys.executable)
    distribution = "agentrl"
    fields = b""
    closed_before_read = True

    def __init__(self, name: str = "agentrl", workers: int = 2) -> None:
        self.name = name
        self.title = f"agentrl ({workers} worker{'s' * (workers > 1)})"
        self._workers = workers

    def server(self, engine_url: str, port: int, folder: Path) -> Command | None:
        serve = [str(self.python), "-m", "agentrl.cli.main", "serve", "--engine-url", engine_url, "--port", str(port)]
        store = f"sqlite:///{folder / f'{self.name}.db'}"
        serve += ["--tokenizer", EMBEDDED, "--store", store, "--workers", str(self._workers)]
        return Command(serve, {"AGENTRL_ADMIN_KEY": ADMIN_KEY})

    def open(self, episode: int) -> Request | None:
        body = b'{"task":{"id":"task-%d","env_id":"bench"},"sampling":{"temperature":1.0}}' % episode
        return Request("POST", "/sessions", body, ADMIN)

    def route(self, episode: int, opened: bytes) -> Route:
        session = orjson.loads(opened)
        key = f"authorization: Bearer {session['api_key']}\r\n".encode()
        origin, path = session["base_url"].split("/sessions/")
        return Route(session["session_id"], f"/sessions/{path}/chat/completions", key, origin)

    def close(self, route: Route) -> Request | None:
        return Request("POST", f"/sessions/{route.session}/finish", b'{"stop_reason":"done"}', ADMIN)

    def read(self, route: Route) -> Request | None:
        return Request("GET", f"/sessions/{route.session}/trajectory", headers=ADMIN)

    def recorded(self, answer: bytes) -> tuple[int, int, int]:
        trajectory = orjson.loads(answer)
        calls, rows = trajectory["calls"], trajectory["rows"]
        if len(rows) != 1 or trajectory["dropped"]:
            raise ValueError(f"the episode became {len(rows)} rows, with {trajectory['dropped']} dropped; expected 1")
        prompts = sum(len(call["prompt_token_ids"]) for call in calls)
        return len(calls), prompts, sum(value is not None for value in rows[0]["logprobs"])
