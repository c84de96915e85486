"""A bounded number of places, given out first come, first served. What asks for several gets them at once, or waits."""

from __future__ import annotations

import asyncio
from collections import deque


class Room:
    """Belongs to one event loop. What asks for more places than there are gets them when all are free."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, count: int) -> None:
        """Nobody holds a part of what it needs while it waits for the rest: two such could wait for each other."""
        if not self._waiting and self._fits(count):
            self.taken += count
            return
        place = (count, asyncio.get_running_loop().create_future())
        self._waiting.append(place)
        try:
            await place[1]
        except asyncio.CancelledError:
            if place in self._waiting:
                self._waiting.remove(place)
                self._let_in()
            elif not place[1].cancelled():  # let in, and cancelled before it could know
                self.leave(count)
            raise

    def leave(self, count: int) -> None:
        self.taken -= count
        self._let_in()

    def _fits(self, count: int) -> bool:
        return self.taken + count <= self.places or self.taken == 0

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            count, told = self._waiting.popleft()
            if not told.done():  # else it was cancelled, and does not want them any more
                self.taken += count
                told.set_result(None)
