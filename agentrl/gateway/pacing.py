"""Keeps the event loop responsive when very many requests are ready at once."""

from __future__ import annotations

import asyncio

BUDGET_S = 0.01
"""Work of requests in one round of the event loop; the rest waits for the next round."""


class Pacer:
    """`turn` is awaited before each piece of work that takes a noticeable part of a millisecond."""

    def __init__(self, budget_s: float = BUDGET_S) -> None:
        self._budget_s = budget_s
        self._ends_at: float | None = None  # of this round's budget

    async def turn(self) -> None:
        """Returns in a round of the loop whose budget is not used up."""
        loop = asyncio.get_running_loop()
        while True:
            if self._ends_at is None:
                self._ends_at = loop.time() + self._budget_s
                loop.call_soon(self._new_round)
                return
            if loop.time() < self._ends_at:
                return
            await asyncio.sleep(0)

    def _new_round(self) -> None:
        self._ends_at = None
