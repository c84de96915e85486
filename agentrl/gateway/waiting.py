"""The queue of calls that wait for an engine, and how long it will be. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

MIN_RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 60.0

Item = TypeVar("Item")
Kind = tuple[int | None, int | None]
"""What decides whether an engine may serve a call: `at_least` and `exactly`."""


class WaitQueue(Generic[Item]):
    """First come first served, except that an item that cannot be served holds up only those of its own kind."""

    def __init__(self) -> None:
        self._lines: dict[Kind, dict[int, Item]] = {}  # by kind, then by arrival
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(line) for line in self._lines.values())

    def add(self, kind: Kind, item: Item) -> int:
        """Returns the ticket by which `discard` knows it."""
        self._arrivals += 1
        self._lines.setdefault(kind, {})[self._arrivals] = item
        return self._arrivals

    def discard(self, kind: Kind, ticket: int) -> None:
        line = self._lines.get(kind, {})
        line.pop(ticket, None)
        if not line:
            self._lines.pop(kind, None)

    def serve(self, try_one: Callable[[Item], bool]) -> None:
        """Offers items by age until no kind can be served. `try_one` says whether it is done with the item."""
        heads = {next(iter(line)): kind for kind, line in self._lines.items()}
        while heads:
            ticket = min(heads)
            kind = heads.pop(ticket)
            if try_one(self._lines[kind][ticket]):
                self.discard(kind, ticket)
                if kind in self._lines:
                    heads[next(iter(self._lines[kind]))] = kind

    def drain(self) -> list[Item]:
        """Takes all, oldest first."""
        everyone = sorted((ticket, kind) for kind, line in self._lines.items() for ticket in line)
        items = [self._lines[kind][ticket] for ticket, kind in everyone]
        self._lines.clear()
        return items


class ServiceRate:
    """Calls ended per second, over the last `window` of them."""

    def __init__(self, window: int = 128) -> None:
        self._ended: deque[float] = deque(maxlen=window)

    def saw_end(self, now: float) -> None:
        self._ended.append(now)

    def per_s(self, now: float) -> float | None:
        """None before anything can be said. Falls while nothing ends."""
        if len(self._ended) < 2 or now <= self._ended[0]:
            return None
        return (len(self._ended) - 1) / (now - self._ended[0])


def retry_after_s(num_waiting: int, per_s: float | None) -> float:
    """Seconds until the calls that wait now will have been taken; the least there is while no rate is known."""
    if per_s is None:
        return MIN_RETRY_AFTER_S
    return min(MAX_RETRY_AFTER_S, max(MIN_RETRY_AFTER_S, num_waiting / per_s))
