"""Folders that last as long as the process that uses them, also when it is killed: the next one clears up."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from pathlib import Path

from agentrl.sandbox.workfolder import remove

_PREFIX = "agentrl-scratch-"
_YOUNG_S = 60.0  # between making a folder and locking it another process must not take it for one left behind


class ScratchFolder:
    """An empty folder for us alone, held by a lock that the kernel lets go of when we are gone."""

    def __init__(self) -> None:
        _clear_up(os.getpid())
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._lock: int | None = _locked(self.path)
        self._owner = os.getpid()

    def remove(self) -> None:
        if self._lock is not None and self._owner == os.getpid():  # a forked copy has no folder
            remove(self.path)
            os.close(self._lock)
            self._lock = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be half gone
            self.remove()


@functools.cache
def _clear_up(pid: int) -> None:
    """Removes the folders that killed processes left behind; once a process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.lstat().st_mtime > _YOUNG_S and (lock := _locked(folder)) is not None:
                remove(folder)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor that holds the folder; None when somebody else does, or it is none of ours."""
    import fcntl  # not everywhere

    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return held
    except OSError:
        pass
    os.close(held)
    return None
