"""When to stop asking a service that keeps failing, and when to ask again. Pure: the caller brings time and chance.

    closed ── `failures` in a row, or a fatal one ──► open ── its wait is over ──► half-open ── success ──► closed
                                                        ▲                              │
                                                        └── failure: a longer wait ────┘

Half-open lets one call at a time through, the probe. While it is open, nothing that calls report is heard, and in
half-open without a probe no failure is: one outage that fails a hundred calls in flight is one failure.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.types import BreakerState

MAX_DOUBLINGS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """`failures` in a row open a breaker: for `backoff_s`, and each time twice as long up to `max_backoff_s`."""

    failures: int = 3
    backoff_s: float = 1.0
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        if self.failures < 1 or not 0 < self.backoff_s <= self.max_backoff_s:
            raise ValueError(f"{self}: failures must be at least 1, and 0 < backoff_s <= max_backoff_s")

    def wait_s(self, openings: int, jitter: float) -> float:
        """Seconds that the `openings`-th opening in a row lasts; `jitter` in [0, 1] takes up to half of it."""
        longest = min(self.max_backoff_s, self.backoff_s * 2.0 ** min(openings - 1, MAX_DOUBLINGS))
        return longest * (1 - jitter / 2)


class Breaker:
    """One per service. `now` is any clock in seconds that never goes back, the same in all calls."""

    __slots__ = ("_failures", "_openings", "_policy", "_probing", "_retry_at")

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self._failures = 0  # in a row
        self._openings = 0  # since the last whole success
        self._retry_at: float | None = None  # None while closed
        self._probing = False

    @property
    def retry_at(self) -> float | None:
        """When an open breaker becomes, or became, half-open. None while it is closed."""
        return self._retry_at

    def state(self, now: float) -> BreakerState:
        if self._retry_at is None:
            return "closed"
        return "open" if now < self._retry_at else "half_open"

    def admits(self, now: float) -> bool:
        """Whether a call may be made now."""
        state = self.state(now)
        return state == "closed" or (state == "half_open" and not self._probing)

    def admit(self, now: float) -> None:
        """A call is made. Raises RuntimeError where `admits` says no."""
        if not self.admits(now):
            raise RuntimeError(f"a call was made through a breaker that is {self.state(now)}; ask admits() first")
        self._probing = self._retry_at is not None

    def answering(self, now: float) -> None:
        """A call has begun to be answered: enough to let others through, not to forget how often it failed before."""
        if self.state(now) == "half_open":
            self._retry_at, self._probing = None, False

    def succeeded(self, now: float) -> None:
        """A call was answered to its end."""
        if self.state(now) == "open":
            return
        self._failures, self._openings, self._retry_at, self._probing = 0, 0, None, False

    def failed(self, now: float, *, jitter: float, fatal: bool = False) -> None:
        """A call failed by the service's fault; a fatal failure needs no second one. `jitter` is random in [0, 1]."""
        state = self.state(now)
        if state == "open" or (state == "half_open" and not self._probing):
            return
        self._failures += 1
        if state == "half_open" or fatal or self._failures >= self._policy.failures:
            self._openings += 1
            self._failures, self._probing = 0, False
            self._retry_at = now + self._policy.wait_s(self._openings, jitter)

    def withdrawn(self) -> None:
        """The probe, if there is one, ended without saying anything about the service: the next call is one."""
        self._probing = False
