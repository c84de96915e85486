"""A directory for weights on their way from the trainer to the engines, in memory where the system has such."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

PREFIX, OF_HOST = "agentrl-", "@"


@contextlib.contextmanager
def shared_memory(parent: Path = Path("/dev/shm")) -> Iterator[Path]:
    """Gone afterwards. What a run left that was killed outright is removed at the next start."""
    usable = parent.is_dir() and os.access(parent, os.W_OK)
    root = parent if usable else Path(tempfile.gettempdir())
    _sweep(root)
    path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}{OF_HOST}{socket.gethostname()}-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _sweep(root: Path) -> None:
    for path in root.glob(f"{PREFIX}*-*"):
        owner, _, host = path.name.removeprefix(PREFIX).rpartition("-")[0].partition(OF_HOST)
        if host not in ("", socket.gethostname()):  # of a driver elsewhere, which may live
            continue
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            shutil.rmtree(path, ignore_errors=True)
