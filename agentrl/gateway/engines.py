"""The engines behind the gateway: their clients, their health, and the queue for them."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from agentrl.errors import EngineError, EngineUnavailable
from agentrl.gateway.ports import EngineClient
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState, Need, RoutingTable
from agentrl.gateway.waiting import ServiceRate, WaitQueue, retry_after_s
from agentrl.types import EngineStatus

logger = logging.getLogger(__name__)

EngineFactory = Callable[[str], EngineClient]


@dataclass(slots=True, eq=False)
class Attached:
    """An engine of the table with what the pool holds for it."""

    engine: EngineState
    client: EngineClient
    watcher: asyncio.Task[None] | None = None
    in_use: set[asyncio.Timeout] = field(default_factory=set)  # one per call, to end it at once

    def end_calls(self) -> None:
        now = asyncio.get_running_loop().time()
        for scope in self.in_use:
            scope.reschedule(now)
        self.in_use = set()


@dataclass(slots=True, eq=False)
class Waiter:
    need: Need
    future: asyncio.Future[EngineState]


class EnginePool:
    """Hands engines to calls, first come first served, and watches them.

    `wait_s` bounds how long a call waits for a routable engine, `max_waiting` how many may wait. `on_routed` is told
    why each call got its engine: sticky, rebalanced, prefix or least_loaded; and `waited` besides, if it had to.
    """

    def __init__(
        self,
        factory: EngineFactory,
        table: RoutingTable,
        *,
        health_every_s: float,
        wait_s: float,
        max_waiting: int,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.table = table
        self.on_routed: Callable[[str], None] = lambda how: None
        self._factory = factory
        self._health_every_s = health_every_s
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._jitter = jitter
        self._attached: dict[str, Attached] = {}  # by engine id
        self._queue: WaitQueue[Waiter] = WaitQueue()
        self._rate = ServiceRate()
        self._wake: asyncio.TimerHandle | None = None  # at the next half-open moment, while calls wait

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def status(self, engine: EngineState) -> EngineStatus:
        return self.table.status(engine, _now())

    async def add(self, url: str, engine_id: str | None = None, version: int | None = None) -> EngineState:
        """Checks the engine once and watches it from then on; an engine that is not up yet is added all the same."""
        engine = self.table.add(url.rstrip("/"), engine_id, version)
        attached = self._attached[engine.id] = Attached(engine, self._factory(engine.url))
        await self._check(attached)
        if self._of(engine) is attached:  # not removed meanwhile
            attached.watcher = asyncio.create_task(self._watch(attached), name=f"health of {engine.id}")
            attached.watcher.add_done_callback(_log_death)
        return engine

    async def remove(self, engine_id: str) -> None:
        """Ends its calls in flight, which other engines may go on with."""
        self.table.remove(engine_id)
        attached = self._attached.pop(engine_id)
        if attached.watcher is not None:
            attached.watcher.cancel()
        attached.end_calls()
        self._serve_waiting()
        await attached.client.close()

    def tell(self, engine_id: str, *, version: int | None, routable: bool | None) -> EngineState:
        """An engine that is held back may be paused for good, so the calls in flight on it are ended."""
        engine = self.table.tell(engine_id, version=version, routable=routable)
        if engine.held_back:
            self._attached[engine_id].end_calls()
        self._serve_waiting()
        return engine

    @asynccontextmanager
    async def client(self, engine: EngineState) -> AsyncIterator[EngineClient]:
        """For one call. Raises EngineUnavailable when the engine is removed, held back or given up, at any time."""
        attached = self._of(engine)
        if attached is None or engine.held_back:
            raise self._withdrawn(engine)
        in_use = attached.in_use
        try:
            async with asyncio.timeout(None) as scope:
                in_use.add(scope)
                try:
                    yield attached.client
                finally:
                    in_use.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise self._withdrawn(engine) from None

    async def acquire(
        self,
        session_id: str,
        *,
        prompt_ids: Sequence[int] = (),
        at_least: int | None = None,
        exactly: int | None = None,
    ) -> EngineState:
        """An engine for one call, of a version that it may have; give it back with `release`.

        Raises Refusal: 409 when version `exactly` is served no more, 429 when too many wait already, 503 when none
        became routable in time.
        """
        need = Need(session_id=session_id, prompt_ids=prompt_ids, at_least=at_least, exactly=exactly)
        self._serve_waiting()
        if (engine := self._take(need)) is not None:  # passes nobody by: those who wait still could not use it
            return engine
        if self.table.is_past(need):
            raise self._past(need)
        if self.waiting >= self._max_waiting:
            message = f"{self.waiting} calls wait for an engine already; try again later or add engines"
            raise Refusal(429, "queue_full", message, retry_after=retry_after_s(self.waiting, self._rate.per_s(_now())))
        return await self._wait(need)

    def release(self, engine: EngineState) -> None:
        self.table.release(engine)
        self._rate.saw_end(_now())
        self._serve_waiting()

    def failed(self, engine: EngineState, error: Exception) -> None:
        """A call failed by the engine's fault; `release` follows. Not for a request that any engine would refuse.

        EngineUnavailable opens its breaker at once, and nothing is routed to it until a health check finds it well
        either; of other errors it takes a few in a row. Of an engine that is held back or removed this says nothing.
        """
        if self.is_withdrawn(engine):
            return
        logger.warning("engine %s failed a call: %s", engine.id, error)
        gone = isinstance(error, EngineUnavailable)
        engine.breaker.failed(_now(), jitter=self._jitter(), fatal=gone)
        if gone and engine.healthy:  # else a call that ended with it would repeat the first cause, longer each time
            self.table.saw_failure(engine, str(error), fatal=True)

    def is_withdrawn(self, engine: EngineState) -> bool:
        """Whether it is held back or removed: the admin's doing, and no fault of its own."""
        return engine.held_back or self._of(engine) is None

    def answering(self, engine: EngineState) -> None:
        """A call got its first tokens: after an outage, others need not wait until it has all of them. Optional."""
        engine.breaker.answering(_now())
        self._serve_waiting()

    def succeeded(self, engine: EngineState) -> None:
        """A call got all of its tokens; `release` follows."""
        engine.breaker.succeeded(_now())

    async def close(self) -> None:
        for waiter in self._queue.drain():
            if not waiter.future.done():
                waiter.future.set_exception(Refusal(503, "stopping", "the gateway is being stopped"))
        for engine in self.table:
            await self.remove(engine.id)

    def _of(self, engine: EngineState) -> Attached | None:
        attached = self._attached.get(engine.id)
        return attached if attached is not None and attached.engine is engine else None

    def _withdrawn(self, engine: EngineState) -> EngineUnavailable:
        if self._of(engine) is None:
            return EngineUnavailable(f"engine {engine.id} was removed")
        why = "held back" if engine.held_back else f"given up: {engine.last_error}"
        return EngineUnavailable(f"engine {engine.id} was {why}")

    def _take(self, need: Need) -> EngineState | None:
        if (taken := self.table.take(need, _now())) is None:
            return None
        engine, choice = taken
        self.on_routed(choice)
        return engine

    async def _wait(self, need: Need) -> EngineState:
        waiter = Waiter(need, asyncio.get_running_loop().create_future())
        ticket = self._queue.add(need.kind, waiter)
        self._set_alarm()
        try:
            async with asyncio.timeout(self._wait_s):
                engine = await waiter.future
        except BaseException as error:
            self._queue.discard(need.kind, ticket)
            future = waiter.future
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())  # it came at the very moment of giving up
            if isinstance(error, TimeoutError):
                raise self._none_routable(need) from None
            raise
        self.on_routed("waited")
        return engine

    def _serve_waiting(self) -> None:
        """After every change that may let a call go: none waits beside an engine that could serve it."""
        if not self.waiting and self._wake is None:
            return
        self._queue.serve(self._try_waiter)
        self._set_alarm()

    def _try_waiter(self, waiter: Waiter) -> bool:
        if waiter.future.done():
            return True
        if (engine := self._take(waiter.need)) is not None:
            waiter.future.set_result(engine)
            return True
        if self.table.is_past(waiter.need):
            waiter.future.set_exception(self._past(waiter.need))
            return True
        return False

    def _set_alarm(self) -> None:
        """A breaker becomes half-open by time alone, which nobody would otherwise notice."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self.waiting and (moment := self.table.next_half_open(_now())) is not None:
            self._wake = asyncio.get_running_loop().call_at(moment, self._serve_waiting)

    def _past(self, need: Need) -> Refusal:
        message = (
            f"session {need.session_id} is pinned to version {need.exactly} and the engines serve version "
            f"{self.table.current_version} now; open a new session"
        )
        return Refusal(409, "version_changed", message)

    def _none_routable(self, need: Need) -> Refusal:
        states = "; ".join(f"{e.id}: {e.last_error or f'version {e.version}'}" for e in self.table) or "none is known"
        if need.exactly is not None:
            asked = f" of version {need.exactly}"
        else:
            asked = "" if need.at_least is None else f" of version {need.at_least} or later"
        message = f"no engine{asked} became routable in {self._wait_s:g} s ({states}); check GET /engines"
        return Refusal(503, "no_engine", message, retry_after=5)

    async def _watch(self, attached: Attached) -> None:
        while True:
            await asyncio.sleep(self._health_every_s)
            await self._check(attached)

    async def _check(self, attached: Attached) -> None:
        engine, client, revision = attached.engine, attached.client, attached.engine.revision
        try:
            if not await client.healthy():
                raise EngineUnavailable(f"engine {engine.id} at {engine.url} does not answer its health check")
            version, context_length = await client.version(), await client.context_length()
        except Exception as error:  # whatever an engine answers, its watcher goes on and the others are served
            if not isinstance(error, EngineError):
                logger.exception("the health check of engine %s failed in an unforeseen way", engine.id)
            was_healthy = engine.healthy
            self.table.saw_failure(engine, str(error) or repr(error))
            if was_healthy and not engine.healthy:  # it is silent for good: its calls need not wait for their timeouts
                attached.end_calls()
        else:
            self.table.saw_healthy(engine, version, context_length, revision)
        self._serve_waiting()


def _now() -> float:
    return asyncio.get_running_loop().time()


def _log_death(watcher: asyncio.Task[None]) -> None:
    if not watcher.cancelled() and (error := watcher.exception()) is not None:
        logger.error("%s stopped: the engine is no longer watched", watcher.get_name(), exc_info=error)
