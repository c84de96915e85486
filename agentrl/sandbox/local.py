"""The sandbox of this machine: namespaces and limits of the Linux kernel around one program at a time."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Protocol

import psutil

from agentrl.errors import ConfigError, SandboxFault, SandboxUnavailable
from agentrl.sandbox import host, workfolder
from agentrl.sandbox.base import SandboxLimits, SandboxRequest, SandboxResult
from agentrl.sandbox.bubblewrap import Bind
from agentrl.sandbox.inner import GO, WORK, inner_command, inner_env
from agentrl.sandbox.pump import Pump
from agentrl.sandbox.supervise import DiskUse, supervise
from agentrl.sandbox.threaded import ThreadedSandbox, result_of
from agentrl.sandbox.usage import ProcessTable, Usage

_SETUP_S = 30.0  # seconds until the program is about to start, on a busy machine
_WRITABLE = (WORK.lstrip("/"), "tmp", "dev/shm")


class Isolation(Protocol):
    """A program that makes namespaces, by its command line."""

    name: str

    def command(
        self, inner: Sequence[str], *, limits: SandboxLimits, env: Mapping[str, str], binds: Sequence[Bind]
    ) -> AbstractContextManager[tuple[list[str], list[int]]]:
        """The command that runs `inner` isolated, and the descriptors that it inherits."""
        ...


class LocalSandbox(ThreadedSandbox):
    """Each run has its own namespaces, work folder, /tmp and, where we are root, its own user id on the host.

    Args:
        isolation: Which program makes the namespaces.
        python: The interpreter that is `python3` inside; a virtual environment's comes with its packages.
        visible: More folders of the host that can be read inside, at the same paths, as far as everybody may read them.
        at_once: How many programs run at a time.

    Raises ConfigError for a `visible` folder that cannot be shown.
    """

    def __init__(
        self, isolation: Isolation, *, python: Path | None = None, visible: Sequence[Path] = (), at_once: int = 64
    ) -> None:
        super().__init__(at_once)
        for folder in visible:
            if not folder.is_dir() or folder.absolute().is_relative_to(WORK):
                raise ConfigError(f"the sandbox cannot show {folder}: it is no folder of this machine, or below {WORK}")
        self._isolation = isolation
        self._python = host.find_python(python)
        self._visible = [*self._python.folders, *(folder.absolute() for folder in visible)]

    def __repr__(self) -> str:
        return f"LocalSandbox({self._isolation.name})"

    def execute(self, request: SandboxRequest, cancelled: threading.Event) -> SandboxResult:
        archive = workfolder.pack(request)
        with ExitStack() as stack:
            pump, ready = self._start(request, len(archive))
            try:
                _until_ready(pump, archive, ready, cancelled)
                cell = stack.enter_context(NamespaceCell(pump.pid))
                pump.restart_output(request.limits.output_bytes)
                pump.feed(GO + request.stdin, last=True)
            except BaseException:
                pump.close()
                raise
            outcome = supervise(pump, cell, request.limits, cancelled)
            return result_of(request, outcome, pump, cell.work)

    def _start(self, request: SandboxRequest, archive_size: int) -> tuple[Pump, str]:
        uid = host.fresh_uid()
        ready = f"ready {secrets.token_hex(8)}"
        inner = inner_command(
            request.argv,
            request.limits,
            archive_size=archive_size,
            ready=ready,
            nproc=host.counts_processes_per_sandbox(uid),
        )
        prefix, binds = self._binds(uid)
        python_folder = str(self._python.executable.parent) if self._python.folders else None
        env = inner_env(request.env, python_folder)
        with self._isolation.command(inner, limits=request.limits, env=env, binds=binds) as (command, passed):
            try:
                process = subprocess.Popen(
                    [*prefix, *_as_user(uid), *command],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, cwd="/", pass_fds=passed, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise SandboxFault(f"the sandbox ({self._isolation.name}) did not start: {error}") from error
        return Pump(process, kept_bytes=4096), ready

    def _binds(self, uid: int | None) -> tuple[list[str], list[Bind]]:
        """The folders to show inside, and a command in front that makes those reachable that only root can enter."""
        folders = list(dict.fromkeys(map(str, self._visible)))
        hidden = [folder for folder in folders if not host.reachable(Path(folder), uid)]
        shown = {folder: f"{_STAGE}/{index}" for index, folder in enumerate(hidden)}
        binds = [Bind(shown.get(folder, folder), folder) for folder in folders]
        if not hidden:
            return [], binds
        if uid is None:
            raise SandboxUnavailable(f"the sandbox cannot show {hidden[0]}: you may not read it; choose another Python")
        unshare = host.program("unshare") or "unshare"
        return [unshare, "--mount", "--propagation", "private", "--", "/bin/sh", "-c", _STAGING, "sandbox",
                str(len(hidden)), *hidden], binds  # fmt: skip


_STAGE = "/mnt"
# In a mount namespace of its own: nothing of it is seen by the host, or lasts.
_STAGING = f"""
set -e
count=$1; shift; index=0
mount -t tmpfs -o mode=0755,size=64k sandbox {_STAGE}
while [ $index -lt $count ]; do
    mkdir {_STAGE}/$index; mount --bind "$1" {_STAGE}/$index; shift; index=$((index + 1))
done
exec "$@"
"""


def _as_user(uid: int | None) -> list[str]:
    if uid is None:
        return []
    setpriv = host.program("setpriv") or "setpriv"
    return [setpriv, f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--"]


def _until_ready(pump: Pump, archive: bytes, ready: str, cancelled: threading.Event) -> None:
    pump.feed(archive, last=False)
    deadline = time.monotonic() + _SETUP_S
    while f"{ready}\n" not in pump.stdout.text:
        if pump.has_ended or time.monotonic() > deadline or cancelled.is_set():
            pump.drain(0.2 if pump.has_ended else 0)
            why = pump.stderr.text.strip()[-500:] or f"no answer within {_SETUP_S:g} s"
            raise SandboxFault(f"the sandbox did not start: {why}")
        pump.turn(0.1)


class NamespaceCell:
    """A sandbox seen from outside. It holds the file systems, so that they can be read when all in them are dead."""

    def __init__(self, outer_pid: int) -> None:
        self._opened: list[int] = []
        self._first = _first_process(outer_pid)  # when it dies, the kernel kills everything in its namespace
        try:
            self._pidfd = os.pidfd_open(self._first)
            self._opened.append(self._pidfd)
            root = f"/proc/{self._first}/root"
            self._disks = [self._hold(f"{root}/{path}") for path in _WRITABLE]
            self._table = ProcessTable(self._hold(f"{root}/proc"))
        except OSError as error:
            self.__exit__()
            raise SandboxFault(f"the sandbox ended while it was prepared: {error}") from error

    def __enter__(self) -> NamespaceCell:
        return self

    def __exit__(self, *_: object) -> None:
        while self._opened:
            os.close(self._opened.pop())

    @property
    def work(self) -> Path:
        """The work folder, by a path that is valid while this is open."""
        return Path(f"/proc/self/fd/{self._disks[0]}")

    def usage(self) -> Usage:
        return self._table.usage()

    def memory_bytes(self) -> int:
        return self._table.memory_bytes()

    def disk(self) -> DiskUse:
        disks = [os.statvfs(disk) for disk in self._disks]
        return DiskUse(
            full=any(disk.f_bavail == 0 for disk in disks), files=sum(disk.f_files - disk.f_ffree for disk in disks)
        )

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def is_dead(self, within_s: float) -> bool:
        # The kernel lets the first process go only when all others in its namespace are gone.
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _hold(self, path: str) -> int:
        self._opened.append(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return self._opened[-1]


def _first_process(outer_pid: int) -> int:
    """The first process of the new namespace: the one child of the program that made it."""
    try:
        children = Path(f"/proc/{outer_pid}/task/{outer_pid}/children").read_text().split()
    except OSError:  # a kernel that does not list them
        children = [str(child.pid) for child in psutil.Process(outer_pid).children()]
    if len(children) != 1:
        raise SandboxFault(f"the sandbox has {len(children)} first processes instead of one")
    return int(children[0])
