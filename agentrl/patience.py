"""Waits out what may pass by itself: a disk that is full for a moment, a database that starts again."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_exponential

logger = logging.getLogger(__name__)

T = TypeVar("T")

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def patiently(write: Callable[[], T], *, passes: Callable[[BaseException], bool], limit_s: float) -> T:
    """What `write` returns, however often it has to be tried within `limit_s`. Raises its last error, or at once one of
    which `passes` says no. It has to leave nothing behind where it fails.
    """

    def say(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            logger.warning("%s; it is tried again for %g s", state.outcome.exception(), limit_s)

    tries = Retrying(
        retry=retry_if_exception(passes),
        wait=wait_exponential(multiplier=0.1, max=1.0),
        stop=stop_after_delay(limit_s),
        before_sleep=say,
        reraise=True,
    )
    return tries(write)


def is_full(error: BaseException) -> bool:
    """A disk, or somebody's share of it."""
    return isinstance(error, OSError) and error.errno in NO_ROOM
