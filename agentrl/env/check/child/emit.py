"""The pipe to the parent, and what must not be mixed with it: whatever the environment prints."""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import Any

from agentrl.env.check.child.author import Author, first_frame
from agentrl.env.check.records import Exiting, Line, Printed, encode

_KEPT = 5  # printed lines that are reported


class Emitter:
    """Writes lines whole, from any thread."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def __call__(self, line: Line) -> None:
        data = memoryview(encode(line) + b"\n")
        with self._lock:
            while data:
                data = data[os.write(self._descriptor, data) :]


class PrintedText(io.TextIOBase):
    """Stands in for `sys.stdout`: what is printed is noted with its line."""

    def __init__(self, emit: Emitter) -> None:
        self.author: Author | None = None
        self._emit = emit
        self._seen = 0

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text.strip() and self._seen < _KEPT:
            self._seen += 1
            place = None if self.author is None else self.author.of_frame(sys._getframe(1))
            self._emit(Printed(text.strip()[:200], place))
        return len(text)


class ExitWatch:
    """`os._exit` ends a process without a trace; here it leaves one."""

    def __init__(self, emit: Emitter) -> None:
        self.author: Author | None = None
        self._emit = emit
        self._exit = os._exit
        self._pid = os.getpid()
        os._exit = self._noted

    def _noted(self, status: int) -> Any:
        if os.getpid() == self._pid:  # a forked child may end itself like that
            frame = sys._getframe(1)
            self._emit(Exiting(first_frame(frame) if self.author is None else self.author.of_frame(frame)))
        self._exit(status)

    def leave(self, status: int) -> None:
        """Ends the process on our own behalf."""
        self._exit(status)
