"""Keeps the event loop responsive when very many requests are ready at once."""

from __future__ import annotations

import asyncio
from collections import deque

BUDGET_S = 0.01
"""Work of requests in one round of the event loop, about; the rest waits for its turn."""


PIECE_S = 0.001
"""What a piece of work is taken for before any was measured."""
LEAST_PIECE_S = 0.0005
"""And at least at any time: after many small pieces large ones may come."""


class Pacer:
    """`turn` is awaited before each piece of work that takes a noticeable part of a millisecond.

    Once a round's budget is used up, pieces are done in the order of their asking, in each round as many as the budget
    is likely to hold; only who has the turn is woken. One a round would be too few: a loop that goes round gives
    Python's lock away, and waits milliseconds for it where another thread is busy.
    """

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._ends_at: float | None = None  # of this round's budget
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._coming = False  # whether `_next` is to be called
        self._began = 0.0  # the pieces that were woken last
        self._woken = 0
        self._piece_s = PIECE_S

    async def turn(self) -> None:
        """Returns when the work may begin; it is to be done before anything else is awaited."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            if self._ends_at is None:
                self._ends_at = loop.time() + self._budget_s
                loop.call_soon(self._new_round)
                return
            if loop.time() < self._ends_at:
                return
        turn = loop.create_future()
        self._waiting.append(turn)
        if not self._coming:
            self._coming = True
            loop.call_soon(self._next)
        await turn

    def _new_round(self) -> None:
        self._ends_at = None

    def _begin(self) -> None:
        self._began = asyncio.get_running_loop().time()

    def _next(self) -> None:
        """Wakes some of those who wait. Callbacks keep their order: `_begin`, the work of these, and `_next` again."""
        loop = asyncio.get_running_loop()
        if self._woken:
            self._piece_s += 0.2 * ((loop.time() - self._began) / self._woken - self._piece_s)
            self._woken = 0
        if not self._waiting:
            self._coming = False
            return
        loop.call_soon(self._begin)
        room = max(1, int(self._budget_s / max(self._piece_s, LEAST_PIECE_S)))
        while self._waiting and self._woken < room:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._woken += 1
        loop.call_soon(self._next)
