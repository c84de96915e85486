"""How many things go on at once, under a limit that may change meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """`async with slots:` waits for one, first come first served. Belongs to one event loop.

    A lower limit takes nothing from those that hold a slot: fewer begin until it is kept again.
    """

    def __init__(self, limit: int) -> None:
        self.taken = 0
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._hand_out()

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it was handed one in the same moment
                self._give_back()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._give_back()

    def _give_back(self) -> None:
        self.taken -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and self.taken < self._limit:
            turn = self._waiting.popleft()
            if not turn.done():  # cancelled while it waited
                self.taken += 1
                turn.set_result(None)
