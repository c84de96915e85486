"""Which of several parallel tracks something is drawn on. Pure."""

from __future__ import annotations

import heapq


class Lanes:
    """What overlaps gets different lanes. Best given in order of starts: what comes late may open another lane."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []  # a heap: when a lane is free, and which one it is

    def place(self, start: int, end: int) -> int:
        """The lane of [start, end), from 0 on: the one that is free for longest, or a new one."""
        if self._ends and self._ends[0][0] <= start:
            lane = self._ends[0][1]
            heapq.heapreplace(self._ends, (end, lane))
        else:
            lane = len(self._ends)
            heapq.heappush(self._ends, (end, lane))
        return lane
