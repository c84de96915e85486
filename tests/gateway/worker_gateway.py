"""A gateway of several worker processes, as `agentrl serve --workers N` runs it."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from test_gateway_serve_command import line_with, start

ADMIN = "sk-agentrl-admin-of-the-test"
CONTROL = {"Authorization": f"Bearer {ADMIN}"}
TIMEOUT_S = 60


class WorkerGateway:
    """`http` speaks to the public port, with the admin key."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url
        self.http = httpx.Client(base_url=url, headers=CONTROL, timeout=TIMEOUT_S, trust_env=False)

    def workers(self) -> list[psutil.Process]:
        return list(psutil.Process(self.process.pid).children())

    def worker_at(self, url: str) -> psutil.Process:
        """The one that listens there."""

        def listens(worker: psutil.Process) -> bool:
            found = [c.laddr.port for c in worker.net_connections() if c.status == psutil.CONN_LISTEN]
            return found == [urlsplit(url).port]

        [worker] = filter(listens, self.workers())
        return worker

    def open(self, **body: Any) -> dict[str, Any]:
        answer = self.http.post("/sessions", json=body)
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def open_at_each(self, **body: Any) -> dict[str, dict[str, Any]]:
        """A session at each of two workers, by the URL of its worker; that of the public port is first."""
        sessions = [self.open(**body) for _ in range(2)]
        at = {worker_of(session): session for session in sessions}
        return {self.url: at.pop(self.url), **at}

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def until(condition: Callable[[], bool]) -> None:
    """Waits for what nothing announces."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def worker_of(session: dict[str, Any]) -> str:
    """The URL of the worker that has it."""
    return str(session["base_url"].partition("/sessions/")[0])


def key_of(session: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {session['api_key']}"}


def ask(url: str, session: dict[str, Any], messages: list[dict[str, Any]], **body: Any) -> httpx.Response:
    """A model call with the session's key."""
    whole = {"messages": messages, **body}
    return httpx.post(
        f"{url}/chat/completions", json=whole, headers=key_of(session), timeout=TIMEOUT_S, trust_env=False
    )


@contextmanager
def gateway_of(
    *engine_urls: str, workers: int = 2, store: Path | None = None, more: Any = (), url: str | None = None
) -> Iterator[WorkerGateway]:
    """`url` is where it is, when it says that it is elsewhere. None of its processes is left afterwards."""
    arguments = [argument for url in engine_urls for argument in ("--engine-url", url)]
    arguments += ["--workers", str(workers), *more]
    if store is not None:
        arguments += ["--store", f"sqlite:///{store}"]
    process = start(*arguments, admin_key=ADMIN)
    children: list[psutil.Process] = []
    try:
        told = line_with(process, r"gateway at (http://\S+)")
        gateway = WorkerGateway(process, url or told)
        children = gateway.workers()
        with gateway.http:
            yield gateway
    finally:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
        _, left = psutil.wait_procs(children, timeout=TIMEOUT_S)
        assert left == []
