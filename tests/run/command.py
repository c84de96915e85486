"""The `agentrl` command as a person runs it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
MARK = "AGENTRL_TEST_RUN"
REAPER_S = 20.0


class Command:
    """One command, found again by a mark that all its processes inherit."""

    def __init__(self, *arguments: str, cwd: Path, on: Sequence[str] = (), **env: str) -> None:
        """`on`: words of a command that starts another one elsewhere."""
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.output = ""
        self._started = time.time()
        self._process = subprocess.Popen(
            [*on, sys.executable, "-m", "agentrl.cli.main", *arguments],
            cwd=cwd,
            env={**os.environ, MARK: self.mark, "COLUMNS": "200", "PYTHONUNBUFFERED": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, text: str) -> None:
        """Reads the output up to a line with `text`; fails with everything read when it ends before."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output += line
            if text in line:
                return
        raise AssertionError(f"no line with {text!r} in:\n{self.output}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: float) -> int:
        """Reads the rest and returns the exit status."""
        rest, _ = self._process.communicate(timeout=timeout)
        self.output += rest
        return self._process.returncode

    def processes(self) -> list[psutil.Process]:
        """Every living process that the command started, directly or not. Ray's agents hide their environment."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get(MARK) == self.mark
                ours |= process.create_time() >= self._started and _title(process).startswith("ray::")
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        return found

    def left_behind(self) -> list[str]:
        """What still lives when the reaper, which goes on for a moment, has had its time."""
        deadline = time.monotonic() + REAPER_S
        while (titles := self._titles()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return titles

    def _titles(self) -> list[str]:
        titles = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):  # it ended since
                titles.append(_title(process))
        return titles

    def engines(self) -> list[psutil.Process]:
        return [process for process in self.processes() if "agentrl.engine.vllm_server" in _title(process)]


def _title(process: psutil.Process) -> str:
    return " ".join(process.cmdline())


def agentrl(*arguments: str, cwd: Path, timeout: float = 120, **env: str) -> tuple[int, str]:
    """Exit status and output of a command that has to end by itself."""
    command = Command(*arguments, cwd=cwd, **env)
    status = command.wait(timeout)
    return status, command.output
