"""Which server of a service the next request goes to. Pure: the caller brings time and chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.breaker import Breaker, BreakerPolicy

POLICY = BreakerPolicy(failures=3, backoff_s=0.5, max_backoff_s=15.0)


@dataclass(eq=False)
class Lane:
    """One server."""

    url: str
    breaker: Breaker = field(default_factory=lambda: Breaker(POLICY))
    in_flight: int = 0


class Lanes:
    """The servers of one service. A request goes to one whose breaker admits it, the least busy first, by turns."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.lanes = [Lane(url) for url in urls]

    def pick(self, now: float, *, avoid: Lane | None = None) -> Lane | None:
        """None while every breaker is open. `avoid`, which failed just now, only where there is no other."""
        admitting = [lane for lane in self.lanes if lane.breaker.admits(now)]
        others = [lane for lane in admitting if lane is not avoid] or admitting
        if not others:
            return None
        chosen = min(others, key=lambda lane: lane.in_flight)
        self.lanes.remove(chosen)  # to the end, so that equals take turns
        self.lanes.append(chosen)
        return chosen

    def begin(self, lane: Lane, now: float) -> None:
        lane.breaker.admit(now)
        lane.in_flight += 1

    def end(self, lane: Lane) -> None:
        lane.in_flight -= 1

    def admit(self, now: float) -> bool:
        """Whether there is a server to ask now."""
        return any(lane.breaker.admits(now) for lane in self.lanes)

    def next_try(self, now: float) -> float | None:
        """When a breaker will admit a request again: `now` when one does, None when a probe under way decides."""
        if self.admit(now):
            return now
        waiting = [lane.breaker.retry_at for lane in self.lanes if lane.breaker.state(now) == "open"]
        return min((at for at in waiting if at is not None), default=None)
