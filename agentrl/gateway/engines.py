"""The engines behind the gateway: their clients, their health, and the queue for them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentrl.errors import EngineError, EngineUnavailable
from agentrl.gateway.ports import EngineClient
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState, RoutingTable

logger = logging.getLogger(__name__)

EngineFactory = Callable[[str], EngineClient]


class EnginePool:
    """Hands engines to calls, first come first served, and watches them.

    `wait_s` bounds how long a call waits for a routable engine, `max_waiting` how many may wait.
    """

    def __init__(
        self, factory: EngineFactory, table: RoutingTable, *, health_every_s: float, wait_s: float, max_waiting: int
    ) -> None:
        self.table = table
        self._factory = factory
        self._health_every_s = health_every_s
        self._wait_s = wait_s
        self._max_waiting = max_waiting
        self._clients: dict[str, EngineClient] = {}
        self._in_use: dict[str, set[asyncio.Timeout]] = {}  # by engine id; to end its calls at once
        self._watchers: dict[str, asyncio.Task[None]] = {}
        self._waiting: deque[tuple[str, asyncio.Future[EngineState]]] = deque()

    @property
    def waiting(self) -> int:
        return sum(not future.done() for _, future in self._waiting)

    async def add(self, url: str, engine_id: str | None = None, version: int | None = None) -> EngineState:
        """Checks the engine once and watches it from then on; an engine that is not up yet is added all the same."""
        engine = self.table.add(url.rstrip("/"), engine_id, version)
        self._clients[engine.id] = self._factory(engine.url)
        await self._check(engine)
        if engine.id in self._clients:  # not removed meanwhile
            watcher = asyncio.create_task(self._watch(engine), name=f"health of {engine.id}")
            watcher.add_done_callback(_log_death)
            self._watchers[engine.id] = watcher
        return engine

    async def remove(self, engine_id: str) -> None:
        self.table.remove(engine_id)
        if (watcher := self._watchers.pop(engine_id, None)) is not None:
            watcher.cancel()
        self._in_use.pop(engine_id, None)
        await self._clients.pop(engine_id).close()

    def tell(self, engine_id: str, *, version: int | None, routable: bool | None) -> EngineState:
        """An engine that is held back may be paused for good, so the calls in flight on it are ended."""
        engine = self.table.tell(engine_id, version=version, routable=routable)
        if engine.held_back:
            now = asyncio.get_running_loop().time()
            for scope in self._in_use.pop(engine_id, ()):
                scope.reschedule(now)
        self._serve_waiting()
        return engine

    @asynccontextmanager
    async def client(self, engine: EngineState) -> AsyncIterator[EngineClient]:
        """For one call. Raises EngineUnavailable when the engine is removed or held back, in its middle too."""
        client = self._clients.get(engine.id)
        if client is None or engine.held_back:
            raise EngineUnavailable(f"engine {engine.id} was {'removed' if client is None else 'held back'}")
        in_use = self._in_use.setdefault(engine.id, set())
        try:
            async with asyncio.timeout(None) as scope:
                in_use.add(scope)
                yield client
        except TimeoutError:
            if not scope.expired():
                raise
            raise EngineUnavailable(f"engine {engine.id} was held back") from None
        finally:
            in_use.discard(scope)

    async def acquire(self, session_id: str) -> EngineState:
        """An engine for one call; give it back with `release`.

        Raises Refusal: 429 when too many wait already, 503 when none became routable in time.
        """
        if not self.waiting and (engine := self.table.take(session_id)) is not None:
            return engine
        if self.waiting >= self._max_waiting:
            message = f"{self.waiting} calls wait for an engine already; try again later or add engines"
            raise Refusal(429, "queue_full", message, retry_after=1)
        future: asyncio.Future[EngineState] = asyncio.get_running_loop().create_future()
        self._waiting.append((session_id, future))
        self._serve_waiting()
        try:
            async with asyncio.timeout(self._wait_s):
                return await future
        except BaseException as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.release(future.result())  # it came at the very moment of giving up
            if isinstance(error, TimeoutError):
                raise self._none_routable() from None
            raise

    def release(self, engine: EngineState) -> None:
        self.table.release(engine)
        self._serve_waiting()

    def failed(self, engine: EngineState, error: Exception) -> None:
        """A call found the engine dead: nothing is routed to it until a health check finds it well.

        Of one that is held back this says nothing.
        """
        if engine.held_back:
            return
        logger.warning("engine %s failed a call: %s", engine.id, error)
        self.table.saw_failure(engine, str(error), fatal=True)

    async def close(self) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(Refusal(503, "stopping", "the gateway is being stopped"))
        for engine in self.table:
            await self.remove(engine.id)

    def _none_routable(self) -> Refusal:
        states = "; ".join(f"{e.id}: {e.last_error or f'version {e.version}'}" for e in self.table) or "none is known"
        message = f"no engine became routable in {self._wait_s:g} s ({states}); check the engines with GET /engines"
        return Refusal(503, "no_engine", message, retry_after=5)

    def _serve_waiting(self) -> None:
        while self._waiting:
            session_id, future = self._waiting[0]
            if not future.done():
                if (engine := self.table.take(session_id)) is None:
                    return
                future.set_result(engine)
            self._waiting.popleft()

    async def _watch(self, engine: EngineState) -> None:
        while True:
            await asyncio.sleep(self._health_every_s)
            await self._check(engine)

    async def _check(self, engine: EngineState) -> None:
        client, revision = self._clients[engine.id], engine.revision
        try:
            if not await client.healthy():
                raise EngineUnavailable(f"engine {engine.id} at {engine.url} does not answer its health check")
            version, context_length = await client.version(), await client.context_length()
        except Exception as error:  # whatever an engine answers, its watcher goes on and the others are served
            if not isinstance(error, EngineError):
                logger.exception("the health check of engine %s failed in an unforeseen way", engine.id)
            self.table.saw_failure(engine, str(error) or repr(error))
        else:
            self.table.saw_healthy(engine, version, context_length, revision)
        self._serve_waiting()


def _log_death(watcher: asyncio.Task[None]) -> None:
    if not watcher.cancelled() and (error := watcher.exception()) is not None:
        logger.error("%s stopped: the engine is no longer watched", watcher.get_name(), exc_info=error)
