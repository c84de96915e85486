"""When a watched process is given up. Pure; the watcher feeds it what it sees."""

from __future__ import annotations

FAILURES_TO_GIVE_UP = 5
"""Probes in a row that must fail: on a busy machine a single one may be late."""


class Pulse:
    """One process. A process that is gone is given up at once, one that does not answer after some probes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._failures = 0

    def saw(self, *, running: bool, answered: bool) -> str | None:
        """What is wrong with it, in words; None while it is well enough."""
        if not running:
            return f"{self.name} died"
        self._failures = 0 if answered else self._failures + 1
        if self._failures >= FAILURES_TO_GIVE_UP:
            return f"{self.name} did not answer {self._failures} health checks in a row"
        return None
