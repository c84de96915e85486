"""How long to wait before asking an HTTP service again. One policy for every client of ours."""

from __future__ import annotations

import random

from tenacity import RetryCallState

MAX_BACKOFF_S = 10.0
MAX_DOUBLINGS = 16
MAX_RETRY_AFTER_S = 60.0


def backoff(state: RetryCallState) -> float:
    """Seconds: a random share of a doubling interval, after what the service asked for (`error.retry_after`)."""
    error = state.outcome.exception() if state.outcome else None
    asked = getattr(error, "retry_after", None) or 0.0
    return min(asked, MAX_RETRY_AFTER_S) + random.uniform(
        0, min(MAX_BACKOFF_S, 0.2 * 2 ** min(state.attempt_number, MAX_DOUBLINGS))
    )


def retry_after(header: str | None) -> float | None:
    """A Retry-After header in seconds. Its other form, a date, counts as none."""
    try:
        return max(0.0, float(header)) if header is not None else None
    except ValueError:
        return None
