"""Notices when the event loop stands still, and in which line."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

from agentrl.env.check.child.author import Author
from agentrl.env.check.records import Place, Stall

_BEAT_S = 0.01
LONGEST_S = 0.1  # that a call may keep the loop from its other episodes


class LoopWatch:
    """A heartbeat on the loop and a thread that looks at the loop's stack while it is late.

    Time that the loop's thread waited for a processor is not counted: a busy machine is no fault of the environment.
    """

    def __init__(self) -> None:
        self.author: Author | None = None
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._native_id = threading.get_native_id()
        self._last = time.perf_counter()
        self._waited = self._queue_wait()
        self._calling = False
        self._late_in: Place | None = None
        self._stalls: list[Stall] = []
        self._stop = threading.Event()
        self._loop.call_later(_BEAT_S, self._beat)
        threading.Thread(target=self._look, name="agentrl-env-check-watch", daemon=True).start()

    def begin(self) -> None:
        self._stalls = []
        self._late_in = None
        self._last, self._waited = time.perf_counter(), self._queue_wait()
        self._calling = True

    async def end(self) -> list[Stall]:
        """The stalls since `begin`."""
        self._measure()
        self._calling = False
        return self._stalls

    def stop(self) -> None:
        self._stop.set()

    def _beat(self) -> None:
        self._measure()
        if not self._stop.is_set():
            self._loop.call_later(_BEAT_S, self._beat)

    def _measure(self) -> None:
        now, waited = time.perf_counter(), self._queue_wait()
        stood = now - self._last - (waited - self._waited)
        if self._calling and stood - _BEAT_S > LONGEST_S:
            self._stalls.append(Stall(1000 * stood, self._late_in))
        self._last, self._waited, self._late_in = now, waited, None

    def _look(self) -> None:
        while not self._stop.wait(_BEAT_S):
            late = time.perf_counter() - self._last > LONGEST_S / 2
            if self._calling and late and self._late_in is None and self.author is not None:
                self._late_in = self.author.of_frame(sys._current_frames().get(self._thread_id))

    def _queue_wait(self) -> float:
        """Seconds that the loop's thread was ready to run and did not; 0 where the system does not say."""
        try:
            with open(f"/proc/self/task/{self._native_id}/schedstat", "rb") as file:
                return int(file.read().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0
