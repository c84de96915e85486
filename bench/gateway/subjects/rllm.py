"""rllm-model-gateway as its own command starts it: traces in SQLite, which is its default, and no request log."""

from __future__ import annotations

from pathlib import Path

import orjson

from bench.gateway.http1 import Request
from bench.gateway.processes import Command
from bench.gateway.subjects.base import PEERS, Route


class Rllm:
    """A session is a name in the URL. It writes a trace after it has answered; it never forgets a session by itself."""

    name = "rllm"
    title = "rllm-model-gateway"
    python = PEERS / "rllm/bin/python"
    distribution = "rllm-model-gateway"
    fields = b""
    closed_before_read = False

    def server(self, engine_url: str, port: int, folder: Path) -> Command | None:
        serve = [str(self.python), "-m", "rllm_model_gateway", "--host", "127.0.0.1", "--port", str(port)]
        traces = ["--store", "sqlite", "--db-path", str(folder / "rllm.db"), "--log-level", "warning"]
        return Command([*serve, "--worker", engine_url, *traces])

    def open(self, episode: int) -> Request | None:
        return Request("POST", "/sessions", b'{"session_id":"episode-%d"}' % episode)

    def route(self, episode: int, opened: bytes) -> Route:
        session = orjson.loads(opened)
        return Route(session["session_id"], f"{session['url']}/chat/completions")

    def close(self, route: Route) -> Request | None:
        return None

    def read(self, route: Route) -> Request | None:
        return Request("GET", f"/sessions/{route.session}/traces")

    def recorded(self, answer: bytes) -> tuple[int, int, int]:
        traces = orjson.loads(answer)
        for trace in traces:
            if len(trace["completion_token_ids"]) != len(trace["logprobs"] or []):
                raise ValueError(f"trace {trace['trace_id']} has not one logprob for each token")
        prompts = sum(len(trace["prompt_token_ids"]) for trace in traces)
        return len(traces), prompts, sum(len(trace["logprobs"]) for trace in traces)
