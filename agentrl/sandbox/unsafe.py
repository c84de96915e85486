"""No isolation: for machines that offer none, and programs that are trusted. Limits are kept as well as they can be."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import threading
import time
from pathlib import Path

import psutil

from agentrl.errors import SandboxFault
from agentrl.sandbox import host, workfolder
from agentrl.sandbox.base import SandboxRequest, SandboxResult
from agentrl.sandbox.inner import inner_env, rlimits
from agentrl.sandbox.pump import Pump
from agentrl.sandbox.scratch import ScratchFolder
from agentrl.sandbox.supervise import DiskUse, supervise
from agentrl.sandbox.threaded import ThreadedSandbox, result_of
from agentrl.sandbox.usage import Usage
from agentrl.tagged import tagged

logger = logging.getLogger(__name__)

_MARK = "AGENTRL_UNSAFE_RUN"


class UnsafeSandbox(ThreadedSandbox):
    """Runs programs as they are, as this user, with network and the whole host in reach. Warns each time it is made."""

    def __init__(self, *, python: Path | None = None, at_once: int = 64) -> None:
        super().__init__(at_once)
        self._python = host.find_python(python).executable
        logger.warning(
            "UNSAFE: programs run WITHOUT A SANDBOX, because it was asked for. They can read and change whatever this "
            "user can, keys and the network included. Install bubblewrap and unset AGENTRL_SANDBOX to be safe."
        )

    def __repr__(self) -> str:
        return "UnsafeSandbox()"

    def execute(self, request: SandboxRequest, cancelled: threading.Event) -> SandboxResult:
        home = ScratchFolder()
        try:
            work = home.path / "work"
            self._prepare(work, request)
            mark = secrets.token_hex(16)
            pump = self._start(work, request, mark)
            cell = _MarkedProcesses(pump.pid, work, mark, request.limits.disk_bytes)
            pump.feed(request.stdin, last=True)
            outcome = supervise(pump, cell, request.limits, cancelled)
            return result_of(request, outcome, pump, work)
        finally:
            home.remove()

    def _prepare(self, work: Path, request: SandboxRequest) -> None:
        if request.workspace is None:
            work.mkdir()
        else:
            shutil.copytree(request.workspace, work, symlinks=True)
        workfolder.make_files(work, request.files)

    def _start(self, work: Path, request: SandboxRequest, mark: str) -> Pump:
        host_path = os.pathsep.join([str(self._python.parent), os.environ.get("PATH", os.defpath)])
        env = {**inner_env({}, None), "PATH": host_path, "HOME": str(work), **request.env, _MARK: mark}
        limited = [host.program("prlimit") or "prlimit", *rlimits(request.limits, nproc=False), "--"]
        try:
            process = subprocess.Popen(
                [*limited, *request.argv], cwd=work, env=env, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise SandboxFault(f"the program could not be started: {error}") from error
        return Pump(process, request.limits.output_bytes)


class _MarkedProcesses:
    """The processes that descend from one, or carry its mark in their environment."""

    def __init__(self, pid: int, work: Path, mark: str, disk_bytes: int) -> None:
        self._pid, self._work, self._disk_bytes = pid, work, disk_bytes
        self._mark = mark

    def usage(self) -> Usage:
        processes = resident = 0
        cpu_s = 0.0
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                processes += process.num_threads()
                resident += process.memory_info().rss
                cpu_s += sum(process.cpu_times()[:4])
        return Usage(processes, resident, cpu_s)

    def memory_bytes(self) -> int:
        total = 0
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                total += process.memory_full_info().pss
        return total

    def disk(self) -> DiskUse:
        found = [entry.status for entry in workfolder.entries(self._work)]
        used = sum(status.st_blocks * 512 for status in found)
        return DiskUse(full=used >= self._disk_bytes, files=len(found))

    def kill(self) -> None:
        for process in self._family():
            with contextlib.suppress(psutil.Error):
                process.suspend()  # so that none forks while others are killed
        for process in [*self._family(), *self._marked()]:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def is_dead(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while any(_lives(process) for process in self._marked()):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def _family(self) -> list[psutil.Process]:
        try:
            first = psutil.Process(self._pid)
            return [first, *first.children(recursive=True)]
        except psutil.Error:
            return []

    def _marked(self) -> list[psutil.Process]:
        found = []
        for pid in tagged(_MARK, self._mark):
            with contextlib.suppress(psutil.Error):
                found.append(psutil.Process(pid))
        return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
