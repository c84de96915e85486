"""Ctrl-C, SIGTERM and a closed terminal: the first ends the run in order, a second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """What a signal does: the first raises KeyboardInterrupt, or ends the task that is inside `cancelling`."""

    def __init__(self, end_everything: Callable[[], object]) -> None:
        self._end_everything = end_everything
        self._cancel: Callable[[], object] | None = None
        self._heard = 0

    @contextlib.contextmanager
    def cancelling(self, ask: Callable[[], bool] = lambda: False, limit_s: float = 0.0) -> Iterator[None]:
        """Inside, in a coroutine, the first signal cancels the running task; at once, unless `ask` says that the task
        ends by itself, and then `limit_s` later.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end() -> None:
            loop.call_later(limit_s if ask() else 0.0, task.cancel)

        self._cancel = lambda: loop.call_soon_threadsafe(end)
        try:
            yield
        finally:
            self._cancel = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        self._heard += 1
        if self._heard > 1:
            self._end_everything()
            os._exit(128 + number)
        if self._cancel is None:
            raise KeyboardInterrupt
        self._cancel()


@contextlib.contextmanager
def interruptible(end_everything: Callable[[], object]) -> Iterator[Interrupts]:
    """Belongs around everything that starts a process, so that no signal finds it half done."""
    interrupts = Interrupts(end_everything)
    with _handlers(interrupts.handle):
        yield interrupts


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """For cleaning up, which is short and must not be cut."""
    with _handlers(signal.SIG_IGN):
        yield


@contextlib.contextmanager
def _handlers(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
