"""Wall-clock time by named phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Phase(NamedTuple):
    """A part of a step, in unix seconds."""

    name: str
    start: float
    end: float


class PhaseTimer:
    """Adds up seconds per phase; phases may repeat, and do not nest."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.phases: list[Phase] = []  # in order

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        began, started = time.time(), time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.phases.append(Phase(name, began, began + spent))
