"""Where the author's code starts, opens and changes things, from Python's audit events."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

from agentrl.env.check.child.author import Author
from agentrl.env.check.records import Place

_EVENTS = {
    "open": "file", "socket.__new__": "socket", "subprocess.Popen": "process", "os.fork": "process",
    "os.posix_spawn": "process", "os.forkpty": "process", "os.chdir": "cwd", "os.fchdir": "cwd",
    "os.putenv": "environ", "os.unsetenv": "environ",
    "tempfile.mkstemp": "temporary", "tempfile.mkdtemp": "temporary",
}  # fmt: skip
_MOST = 10_000  # places that are remembered of one kind


class Seen:
    """The last line of the author's for each thing, and for each kind of thing."""

    def __init__(self) -> None:
        self.author: Author | None = None
        self.threads: weakref.WeakKeyDictionary[threading.Thread, Place] = weakref.WeakKeyDictionary()
        self.named: dict[tuple[str, str], Place] = {}
        self.last: dict[str, Place] = {}
        self.temporary: dict[str, Place] = {}
        sys.addaudithook(self._hook)
        self._watch_threads()

    def place(self, kind: str, name: str = "") -> Place | None:
        return self.named.get((kind, name)) or self.last.get(kind)

    def _watch_threads(self) -> None:
        """Python 3.11 has no audit event for a thread's start."""
        plain = threading.Thread.start

        def start(thread: threading.Thread) -> None:
            place = None if self.author is None else self.author.of_frame(sys._getframe(1))
            if place is not None:
                self.threads[thread] = place
            plain(thread)

        threading.Thread.start = start  # type: ignore[assignment,method-assign]

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        kind = _EVENTS.get(event)
        if kind is None or self.author is None:
            return
        place = self.author.of_frame(sys._getframe(1))
        if place is None:
            return
        self.last[kind] = place
        if arguments and len(self.named) < _MOST and isinstance(arguments[0], str | bytes):
            name = os.fsdecode(arguments[0])
            if kind == "temporary":
                self.temporary[name] = place
            self.named[kind, os.path.abspath(name) if kind == "file" else name] = place
