"""Servers as processes of their own: started, waited for, measured, stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from msgspec import Struct, field

ROOT = Path(__file__).absolute().parents[2]  # not resolved: another checkout may link to this folder
START_S, STOP_S, IDLE_S = 120.0, 15.0, 60.0
IDLE_SHARE = 0.1
"""Of one core, below which a server counts as idle."""


class Command(Struct, frozen=True):
    """How a server is started. `health` is a path that answers 200 once it serves."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    health: str = "/health"


class ServerFailed(Exception):
    """A server did not start, or died."""


class Server:
    """`with Server("name", command, port, folder) as server:`; its output goes to `folder/name.log`."""

    def __init__(self, name: str, command: Command, port: int, folder: Path) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{name}.log"
        self._command = command

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command.argv,
                cwd=ROOT,
                env=os.environ | dict(self._command.env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        self.stats = psutil.Process(self._process.pid)
        try:
            self._wait_until_healthy()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def cpu_seconds(self) -> float:
        """Of all its processes."""
        return sum(float(times.user + times.system) for times in (each.cpu_times() for each in self._processes()))

    def rss_bytes(self) -> int:
        return sum(int(each.memory_info().rss) for each in self._processes())

    def _processes(self) -> list[psutil.Process]:
        return [self.stats, *self.stats.children(recursive=True)]

    def wait_until_idle(self) -> None:
        """Lets it finish what it put off: recording after the answer, for instance."""
        deadline = time.monotonic() + IDLE_S
        while time.monotonic() < deadline:
            before = self.cpu_seconds()
            time.sleep(0.2)
            if self.cpu_seconds() - before < IDLE_SHARE * 0.2:
                return

    def check(self) -> None:
        """Raises ServerFailed when it has died."""
        if (code := self._process.poll()) is not None:
            raise ServerFailed(f"{self.name} died with status {code}; its log ends:\n{self._tail()}")

    def _wait_until_healthy(self) -> None:
        deadline = time.monotonic() + START_S
        while not self._healthy():
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self.name} was not up in {START_S:g} s; its log ends:\n{self._tail()}")
            time.sleep(0.05)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + self._command.health, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def _stop(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                return
            os.killpg(self._process.pid, number)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                continue


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
