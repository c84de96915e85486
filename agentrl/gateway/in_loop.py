"""Small batches of the journal are written in the event loop itself: waking a thread and being woken by it takes longer
than the transaction. Where the disk takes its time, that thread does it all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from agentrl.gateway.ports import TrajectorySink
from agentrl.types import JournalEntry, Trajectory

MOST_BYTES = 64 * 2**10
"""Of a batch: some tenths of a millisecond."""
SLOW_S = 0.02
"""What a transaction may hold up the event loop. A process that waits for a core for a moment stays below it."""
AVOIDED_S = 10.0
"""How long none is tried in the loop after one took longer than that."""


class InLoop:
    def __init__(self, sink: TrajectorySink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink = sink
        self._clock = clock
        self._tried_again_at = 0.0

    def write(self, works: Sequence[JournalEntry | Trajectory]) -> bool:
        """Whether it is written; else nothing of it is."""
        began = self._clock()
        if began < self._tried_again_at:
            return False
        entries = [work for work in works if isinstance(work, JournalEntry)]
        if len(entries) < len(works) or sum(len(entry.data) for entry in entries) > MOST_BYTES:
            return False
        done = self._sink.append_at_once(entries)
        ended = self._clock()
        if ended - began > SLOW_S:
            self._tried_again_at = ended + AVOIDED_S
        return done
