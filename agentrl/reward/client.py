"""A client of one reward service: batched by size and age, spread over its servers, patient as it is told to be."""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Sequence

from agentrl.errors import RewardError
from agentrl.retry import MAX_BACKOFF_S, MAX_RETRY_AFTER_S
from agentrl.reward.config import ServiceConfig
from agentrl.reward.delivery import (
    Outage,
    Parcel,
    Policy,
    Refused,
    Trouble,
    Verdict,
    Waiting,
    after_outage,
    after_refusal,
    after_trouble,
)
from agentrl.reward.lanes import Lane, Lanes
from agentrl.reward.protocol import Item, Score
from agentrl.reward.room import Room
from agentrl.reward.stats import ServiceStats
from agentrl.reward.wire import ServiceWire

log = logging.getLogger(__name__)

MAX_QUEUED = 4096
"""Items that wait for a request at once; further ones wait with whoever asks for them."""

FIRST_BACKOFF_S = 0.2

NAMED = 64
"""Items that a line of the log names, at most."""


def always() -> bool:
    return True


def _named(items: Sequence[Waiting]) -> str:
    shown = ", ".join(waiting.item.id for waiting in items[:NAMED])
    return shown if len(items) <= NAMED else f"{shown} and {len(items) - NAMED} more"


class RewardClient:
    """Belongs to one event loop. A failure is the `error` of the items that it cost, never an exception.

    No request is sent while one of `concurrency` is not free; items of several callers share requests. Raises
    ConfigError as `ServiceWire` does.
    """

    def __init__(self, service: ServiceConfig, *, policy: Policy = "drop", give_up_s: float = 600.0) -> None:
        self.service = service
        self.stats = ServiceStats()
        self._policy: Policy = policy
        self._give_up_s = give_up_s
        self._wire = ServiceWire(service)
        self._lanes = Lanes(service.addresses)
        self._free = service.concurrency
        self._batch_size = 1 if service.protocol == "nemo_gym" else service.batch_size
        self._new: deque[tuple[float, Waiting]] = deque()  # (since when, item), to be joined to parcels
        self._ready: deque[Parcel] = deque()
        self._later: list[tuple[float, int, Parcel]] = []  # a heap: (when, number, parcel)
        self._numbers = itertools.count()
        self._room = Room(MAX_QUEUED)
        self._sending: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._out_since: float | None = None
        self._closed = False

    async def score(
        self, items: Sequence[Item], *, together: bool = False, useful: Callable[[], bool] = always
    ) -> dict[str, Score]:
        """A score for every item, by id. `together`: in one request of their own, whatever the batch size.

        With the policy `defer`, items are waited for as long as `useful` says yes.
        """
        loop = asyncio.get_running_loop()
        waiting = [Waiting(item, loop.create_future(), useful) for item in items]
        try:
            if together:
                await self._take(waiting, lambda: self._ready.append(Parcel(waiting, together=True)))
            else:
                size = self._batch_size
                for start in range(0, len(waiting), size):
                    part = waiting[start : start + size]
                    await self._take(part, functools.partial(self._queue, part))
            scores = await asyncio.gather(*(one.score for one in waiting))
        finally:
            for one in waiting:
                one.score.cancel()  # nobody waits any more: what was not sent yet is not sent
        self.stats.failures += sum(score.error is not None for score in scores)
        return {score.id: score for score in scores}

    def metrics(self) -> dict[str, float]:
        """With the outage that goes on."""
        going_on = 0.0 if self._out_since is None else time.monotonic() - self._out_since
        counted = self.stats.as_metrics()
        return counted | {"outage_s": counted["outage_s"] + going_on}

    async def check(self) -> None:
        """Raises RewardError when a server's health check fails."""
        if self.service.protocol != "agentrl":  # the others have none
            return
        for url in self.service.addresses:
            if (problem := await self._wire.healthy(url)) is not None:
                raise RewardError(f"reward service {self.service.name} {problem}; start it or correct its url")

    async def close(self) -> None:
        """Nobody is left waiting: what has no score yet gets an error."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        parcels = [*self._ready, *(parcel for _, _, parcel in self._later)]
        self._turn_away([waiting for _, waiting in self._new] + [one for parcel in parcels for one in parcel.items])
        self._new.clear()
        self._ready.clear()
        self._later.clear()
        await self._wire.close()

    async def _take(self, items: Sequence[Waiting], put: Callable[[], None]) -> None:
        """Waits for room: a queue that is full slows down whoever fills it."""
        await self._room.take(len(items))
        if self._closed:
            self._turn_away(items)
            return
        put()
        self._pump()

    def _queue(self, items: Sequence[Waiting]) -> None:
        now = time.monotonic()
        self._new.extend((now, waiting) for waiting in items)

    def _pump(self) -> None:
        """Sends what can be sent now, and comes back when more can."""
        if self._closed:
            return
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        while self._free > 0 and (parcel := self._next_parcel(now)) is not None:
            lane = self._lanes.pick(now, avoid=parcel.avoid)
            if lane is None:
                self._ready.appendleft(parcel)
                self._refused(now)
                break
            self._free -= 1
            self._lanes.begin(lane, now)
            task = asyncio.get_running_loop().create_task(self._send(parcel, lane))
            self._sending.add(task)
            task.add_done_callback(functools.partial(self._sent, parcel, lane))
        if not (self._new or self._ready or self._later or self._sending_now):
            self._outage_ends(now)  # nobody waits for it
        self._set_timer(now)

    @property
    def _sending_now(self) -> int:
        return self.service.concurrency - self._free

    def _next_parcel(self, now: float) -> Parcel | None:
        while self._ready:
            parcel = self._ready.popleft()
            self._forget_the_abandoned(parcel)
            if parcel.items:
                return parcel
        due = len(self._new) >= self._batch_size or (self._new and now - self._new[0][0] >= self.service.batch_wait_s)
        if not due:
            return None
        parcel = Parcel([self._new.popleft()[1] for _ in range(min(self._batch_size, len(self._new)))])
        self._forget_the_abandoned(parcel)
        return parcel if parcel.items else self._next_parcel(now)

    def _forget_the_abandoned(self, parcel: Parcel) -> None:
        """Items whose caller was cancelled are not asked for."""
        gone = [waiting for waiting in parcel.items if waiting.score.done()]
        if gone:
            parcel.items = [waiting for waiting in parcel.items if waiting not in gone]
            self._room.leave(len(gone))

    def _set_timer(self, now: float) -> None:
        due = [self._later[0][0]] if self._later else []
        if self._ready and (at := self._lanes.next_try(now)) is not None:
            due.append(max(at, now + 0.01))
        if self._new and self._free > 0:
            due.append(self._new[0][0] + self.service.batch_wait_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due and self._free > 0:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, min(due) - now), self._pump)

    def _sent(self, parcel: Parcel, lane: Lane, task: asyncio.Task[None]) -> None:
        """Called when the task is over: one that is cancelled before it began could not do this itself."""
        self._sending.discard(task)
        self._lanes.end(lane)
        self._free += 1
        if task.cancelled():  # the client is being closed
            self._turn_away(parcel.items)
        self._pump()

    async def _send(self, parcel: Parcel, lane: Lane) -> None:
        started = time.monotonic()
        try:
            scores = await self._wire.score(lane.url, [waiting.item for waiting in parcel.items])
        except Outage as error:
            self._lane_failed(lane, error)
            self._after(parcel, lane, error, self._outage(parcel))
        except Trouble as error:
            healthy = await self._is_healthy(lane, parcel)
            self._lane_failed(lane, error)
            verdict = after_trouble(
                parcel, max_attempts=self.service.max_attempts, successes=self.stats.requests, healthy=healthy
            )
            self._after(parcel, lane, error, verdict or self._outage(parcel))
        except Refused as error:
            lane.breaker.succeeded(time.monotonic())
            self._after(parcel, lane, error, after_refusal(parcel))
        except RewardError as error:  # it is up, and will not take this
            lane.breaker.succeeded(time.monotonic())
            self._give_up(parcel.items, error)
        except Exception as error:  # ours to mend; nobody may wait for ever
            log.exception("reward service %s: a request failed in the client", self.service.name)
            lane.breaker.withdrawn()
            self._give_up(parcel.items, RewardError(f"{type(error).__name__}: {error}"))
        else:
            self._succeeded(lane, parcel, scores, time.monotonic() - started)

    def _succeeded(self, lane: Lane, parcel: Parcel, scores: dict[str, Score], seconds: float) -> None:
        now = time.monotonic()
        lane.breaker.succeeded(now)
        self.stats.answered(len(scores), seconds)
        if self._out_since is not None:
            log.warning("reward service %s is back after %.1f s", self.service.name, now - self._out_since)
            self._outage_ends(now)
        failed = [waiting for waiting in parcel.items if scores[waiting.item.id].error is not None]
        if failed:
            log.warning("%s; left without its reward: %s", scores[failed[0].item.id].error, _named(failed))
        for waiting in parcel.items:
            self._settle_one(waiting, scores[waiting.item.id])

    def _outage(self, parcel: Parcel) -> Verdict:
        return after_outage(
            parcel,
            now=time.monotonic(),
            policy=self._policy,
            max_attempts=self.service.max_attempts,
            give_up_s=self._give_up_s,
        )

    def _after(self, parcel: Parcel, lane: Lane, error: RewardError, verdict: Verdict) -> None:
        if verdict.given_up:
            self._give_up(verdict.given_up, error)
        if verdict.late:
            self.stats.late += len(verdict.late)
            log.warning("%s; %s can no longer be trained", error, _named(verdict.late))
            for waiting in verdict.late:
                self._settle_one(waiting, Score(id=waiting.item.id))
        asked = min(getattr(error, "retry_after", None) or 0.0, MAX_RETRY_AFTER_S)
        for again in verdict.again:
            again.avoid = lane
            tries = again.outages + again.failures
            delay = asked + random.uniform(0, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(tries, 10)))
            heapq.heappush(self._later, (time.monotonic() + delay, next(self._numbers), again))

    def _lane_failed(self, lane: Lane, error: RewardError) -> None:
        now = time.monotonic()
        self.stats.failed_requests[type(error).__name__.lower()] += 1
        was_open = lane.breaker.state(now) == "open"
        lane.breaker.failed(now, jitter=random.random())
        if not was_open and lane.breaker.state(now) == "open":
            log.warning("%s; nothing is sent to %s for a while", error, lane.url)
        if not self._lanes.admit(now):
            self._refused(now)

    def _refused(self, now: float) -> None:
        """No server takes anything now: the service is out."""
        self._out_since = now if self._out_since is None else self._out_since

    def _outage_ends(self, now: float) -> None:
        if self._out_since is not None:
            self.stats.outage_s += now - self._out_since
            self._out_since = None

    async def _is_healthy(self, lane: Lane, parcel: Parcel) -> bool:
        """Asked only where it decides: an item alone, or a whole group, that is about to be given up."""
        alone = parcel.together or len(parcel.items) == 1
        last = alone and parcel.failures + 1 >= self.service.max_attempts
        return last and self.service.protocol == "agentrl" and await self._wire.healthy(lane.url) is None

    def _give_up(self, items: Sequence[Waiting], error: RewardError) -> None:
        log.warning("%s; left without its reward: %s", error, _named(items))
        for waiting in items:
            self._settle_one(waiting, Score(id=waiting.item.id, error=str(error)))

    def _settle_one(self, waiting: Waiting, score: Score) -> None:
        if not waiting.score.done():
            waiting.score.set_result(score)
        self._room.leave(1)

    def _turn_away(self, items: Sequence[Waiting]) -> None:
        for waiting in items:
            error = f"reward service {self.service.name}: its client was closed before it answered"
            self._settle_one(waiting, Score(id=waiting.item.id, error=error))
