"""When a worker that died is started again, and when the gateway is given up. Pure: no clock."""

from __future__ import annotations

from collections import deque

from msgspec import Struct


class RestartPolicy(Struct, frozen=True):
    """At most `deaths` within `window_s` seconds; the wait doubles with each of them, up to `max_backoff_s`."""

    deaths: int = 5
    window_s: float = 120.0
    backoff_s: float = 0.1
    max_backoff_s: float = 5.0


class Restarts:
    """Of one worker."""

    def __init__(self, policy: RestartPolicy) -> None:
        self._policy = policy
        self._died: deque[float] = deque()

    def died(self, now: float) -> float | None:
        """Seconds to wait before it is started again; None when it dies too often."""
        self._died.append(now)
        while self._died[0] <= now - self._policy.window_s:
            self._died.popleft()
        if len(self._died) > self._policy.deaths:
            return None
        return min(self._policy.max_backoff_s, self._policy.backoff_s * 2 ** (len(self._died) - 1))
