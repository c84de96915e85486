"""The gateway without HTTP: sessions, engines and the store put together. `app` and `control` put HTTP in front."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress

from agentrl.errors import StoreError
from agentrl.gateway.auth import Auth
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.engines import EngineFactory, EnginePool
from agentrl.gateway.metrics import Metrics
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer
from agentrl.gateway.routing import RoutingTable
from agentrl.gateway.session import Session
from agentrl.gateway.sessions import SessionRegistry
from agentrl.gateway.turns import Turns
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S = 30.0


class Gateway:
    """Everything that one gateway process holds. Without a sink, trajectories live until they are read or expire."""

    def __init__(
        self,
        config: GatewayConfig,
        renderer: Renderer,
        engine_factory: EngineFactory,
        *,
        admin_key: str,
        sink: TrajectorySink | None,
    ) -> None:
        self.config = config
        self.base_url = config.public_url or ""  # the server fills it in once it has its port
        self.sessions = SessionRegistry(
            max_sessions=config.max_sessions, idle_s=config.session_idle_s, saved_idle_s=config.saved_idle_s
        )
        self.auth = Auth(admin_key, self.sessions)
        self.metrics = Metrics()
        self.table = RoutingTable(max_in_flight=config.max_in_flight_per_engine)
        self.pool = EnginePool(
            engine_factory,
            self.table,
            health_every_s=config.health_every_s,
            wait_s=config.engine_wait_s,
            max_waiting=config.max_waiting,
        )
        self.turns = Turns(renderer, self.pool, self.metrics, timeout_s=config.request_timeout_s)
        self._sink = sink
        self.metrics.gauge("sessions", "Sessions held in memory", lambda: len(self.sessions))
        self.metrics.gauge("in_flight", "Calls at an engine", lambda: sum(e.in_flight for e in self.table))
        self.metrics.gauge("waiting", "Calls waiting for an engine", lambda: self.pool.waiting)
        self.metrics.gauge("version", "The current version of the weights", lambda: self.table.current_version)

    async def start(self) -> None:
        """Attaches the configured engines, reachable or not."""
        await asyncio.gather(*(self.pool.add(url) for url in self.config.engine_urls))

    async def close(self) -> None:
        await self.pool.close()

    async def finish(self, session: Session, stop_reason: str | None) -> Trajectory:
        """Seals a session; its trajectory is durable when this returns. Safe to call again.

        Raises Refusal (503) when the store failed or was too slow; the session stays sealed and may be finished again.
        """
        async with session.finishing:
            await session.seal(stop_reason, time.time())
            self.table.forget_session(session.id)
            trajectory = session.trajectory()
            if self._sink is None or session.saved:
                return trajectory
            if session.saving is None:
                session.saving = asyncio.create_task(asyncio.to_thread(self._sink.save, trajectory))
            try:
                async with asyncio.timeout(self.config.save_timeout_s):
                    await asyncio.shield(session.saving)
            except TimeoutError:
                message = f"the store did not take the trajectory in {self.config.save_timeout_s:g} s; finish it again"
                raise Refusal(503, "store_slow", message, retry_after=5) from None
            except StoreError as error:
                session.saving = None
                raise Refusal(503, "store_failed", f"the trajectory was not saved: {error}", retry_after=5) from error
            session.saved = True
            return trajectory

    async def reward(
        self,
        session: Session,
        reward: float | None,
        components: Mapping[str, float | None] | None,
        call_id: str | None,
    ) -> None:
        """Sets a reward; after finish it is told to the store before this returns. Raises Refusal."""
        async with session.finishing:
            if session.saved and call_id is not None:
                raise Refusal(
                    409, "session_sealed", f"session {session.id} is finished; a call's reward comes before that"
                )
            session.set_reward(reward, components, call_id)
            session.last_used = time.time()
            if session.saved and self._sink is not None:
                try:
                    async with asyncio.timeout(self.config.save_timeout_s):
                        await asyncio.to_thread(self._sink.set_reward, session.id, reward, session.components)
                except (StoreError, TimeoutError) as error:
                    message = f"the store did not take the reward: {error!r}; send it again"
                    raise Refusal(503, "store_failed", message, retry_after=5) from error

    async def forget(self, session_id: str) -> None:
        session = self.sessions.forget(session_id)
        self.table.forget_session(session_id)
        await session.seal(None, time.time())

    async def expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            self.expire(time.time())

    def expire(self, now: float) -> None:
        for session in self.sessions.expire(now):
            self.table.forget_session(session.id)
            session.sealed = True
            if not session.saved:
                logger.warning("session %s was abandoned with %d calls", session.id, len(session.graph.calls))
                self.metrics.expired.inc()


async def stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
