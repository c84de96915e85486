"""When a watched process is given up. Pure; the watcher feeds it what it sees."""

from __future__ import annotations


class Pulse:
    """A process that is gone is given up at once, one that does not answer after `failures` looks in a row.

    On a busy machine a single answer may be late.
    """

    def __init__(self, failures: int) -> None:
        self._limit = failures
        self._failures = 0

    def saw(self, *, running: bool, answered: bool) -> str | None:
        """What is wrong, as its name goes on; None while it is well enough."""
        if not running:
            return "died"
        self._failures = 0 if answered else self._failures + 1
        if self._failures >= self._limit:
            return f"did not answer {self._failures} health checks in a row"
        return None
