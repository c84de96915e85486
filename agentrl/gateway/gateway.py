"""The gateway without HTTP: sessions, engines and the store put together. `app` and `control` put HTTP in front."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentrl.breaker import BreakerPolicy
from agentrl.gateway.archive import Archive
from agentrl.gateway.auth import Auth
from agentrl.gateway.books import Books
from agentrl.gateway.config import GatewayConfig
from agentrl.gateway.deltas import Answer
from agentrl.gateway.drifts import Drifts, SessionDrift
from agentrl.gateway.engines import EngineFactory, EnginePool
from agentrl.gateway.metrics import Metrics
from agentrl.gateway.pacing import Pacer
from agentrl.gateway.parsers import chosen_family
from agentrl.gateway.planner import Planner
from agentrl.gateway.pools import Pools
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer
from agentrl.gateway.routing import RoutingTable
from agentrl.gateway.session import Session
from agentrl.gateway.sessions import SESSION_ID, SessionRegistry
from agentrl.gateway.turns import Turns
from agentrl.gateway.workers.placement import ALONE, Placement
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)

EXPIRE_EVERY_S = 30.0
CLOSE_S = 10.0
SHORT_IDS = 4096
"""Of a session whose drift is measured in the event loop: some tenths of a millisecond."""
ABANDONED = "abandoned"
"""The stop reason of a session that nobody finished."""


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
        placement: Placement = ALONE,
    ) -> None:
        self.config = config
        self.placement = placement
        self._renderer = renderer
        self.base_url = config.public_url or ""  # the server fills it in once it has its port
        self.sessions = SessionRegistry(
            max_sessions=config.max_sessions,
            idle_s=config.session_idle_s,
            saved_idle_s=config.saved_idle_s,
            placement=placement,
        )
        self.auth = Auth(admin_key, self.sessions, self.session)
        self.metrics = Metrics()
        self.pools = Pools(lambda: self._new_pool(engine_factory))
        self.planner = Planner(renderer, chosen_family(config.parser))
        self.pacer = Pacer()
        self._archive = (
            None
            if sink is None
            else Archive(sink, timeout_s=config.save_timeout_s, owner=config.name, pacer=self.pacer)
        )
        self.books = Books(self._archive, self.pacer)
        self.turns = Turns(self.planner, self.metrics, self.books, self.pacer, timeout_s=config.request_timeout_s)
        self.metrics.gauge("sessions", "Sessions not finished and saved", self._unsaved)
        self.metrics.gauge("in_flight", "Calls at an engine", lambda: sum(e.in_flight for e in self.pools.engines))
        self.metrics.gauge("waiting", "Calls waiting for an engine", lambda: sum(pool.waiting for pool in self.pools))
        self.metrics.gauge(
            "version", "The current version of the weights", lambda: self.pools.shared.table.current_version
        )

    def _new_pool(self, engine_factory: EngineFactory) -> EnginePool:
        config = self.config
        pool = EnginePool(
            engine_factory,
            RoutingTable(
                max_in_flight=config.max_in_flight_per_engine,
                max_skew=config.max_skew,
                engine_concurrency=config.engine_concurrency,
                breaker=BreakerPolicy(
                    failures=config.breaker_failures,
                    backoff_s=config.breaker_backoff_s,
                    max_backoff_s=config.breaker_max_backoff_s,
                ),
            ),
            health_every_s=config.health_every_s,
            wait_s=config.engine_wait_s,
            max_waiting=config.max_waiting,
        )
        pool.on_routed = lambda how: self.metrics.routed.labels(how).inc()
        return pool

    async def restore(self) -> None:
        """Takes up the sessions that a gateway of this name left in the store, a worker its own. Before the first
        request, to which their keys and ids would be unknown.

        Raises StoreError when the store cannot be read.
        """
        for session in await self.books.left_behind(self.placement.owns):
            self.sessions.adopt(session)

    async def start(self) -> None:
        """Attaches the engines, reachable or not."""
        await asyncio.gather(*(self.pools.shared.add(url) for url in self.config.engine_urls))

    async def close(self) -> None:
        """What open sessions sampled is saved first, as far as the store takes it in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(self._abandon(session) for session in self.sessions if not session.saved))
        await self.pools.close()
        if self._archive is not None:
            await self._archive.close()

    def pool_of(self, session: Session) -> EnginePool:
        return self.pools.serving(session.run_id)

    async def open(self, session_id: str | None, **opened_with: Any) -> tuple[Session, str]:
        """A session and its key; it is in the store when this returns.

        Raises Refusal: the id is taken, in the store too (409), or too many sessions (429), or no store (503).
        """
        session, key = self.sessions.create(session_id, now=time.time(), **opened_with)
        try:
            if session_id is not None and self._archive is not None and await self._archive.holds(session_id):
                raise Refusal(
                    409, "session_exists", f"the store holds a session {session_id!r} already", param="session_id"
                )
            await self.books.opened(session)
        except BaseException:
            self.sessions.forget(session.id)
            raise
        return session, key

    def delivered(self, session: Session, answers: Sequence[Answer], delivered: bool) -> None:
        """Notes whether the client can have had these answers."""
        for index in session.set_delivered([answer.call.call_id for answer in answers], delivered):
            self.books.changed(session, index)

    async def session(self, session_id: str) -> Session:
        """By id; one that only the store remembers is sealed and released. Raises Refusal (404) for an unknown id."""
        if session_id not in self.sessions and self._archive is not None and SESSION_ID.fullmatch(session_id):
            trajectory = await self._archive.find(session_id)
            if trajectory is not None:
                return Session.of_stored(trajectory)
        return self.sessions.get(session_id)

    async def trajectory(self, session: Session) -> Trajectory:
        if not session.released:
            return session.trajectory()
        assert self._archive is not None
        if (found := await self._archive.find(session.id)) is None:
            raise Refusal(404, "session_not_found", f"session {session.id} is no longer in the store")
        return found

    async def finish(self, session: Session, stop_reason: str | None, *, limit_first: bool = False) -> Trajectory:
        """Seals a session (`Session.seal`); its trajectory is durable when this returns. Safe to call again.

        Raises Refusal (503, 500) when the store was too slow or refused; the session stays sealed all the same.
        """
        async with session.finishing:
            await session.seal(stop_reason, time.time(), limit_first=limit_first)
            self.pools.forget_session(session.id)
            if self._archive is not None:
                await self._archive.update(session)
        return await self.trajectory(session)

    async def finish_group(self, group_id: str, stop_reason: str) -> list[str]:
        """Finishes the group's open sessions, whose episodes nobody plays on; the ids of those that have calls.

        Raises Refusal (503, 500): those that were not reached stay open, and the same may be asked again.
        """
        ended = []
        for session in self.sessions:
            if session.metadata.get("group_id") != group_id or session.sealed:
                continue
            await session.seal(stop_reason, time.time())
            if session.graph.calls:
                await self.finish(session, stop_reason)
                ended.append(session.id)
            else:
                await self.forget(session.id)
        return ended

    async def drift(self, session: Session) -> SessionDrift | None:
        """Of a finished session, counted once; None where it is not measured, or no longer known."""
        if not self.config.measure_drift or session.released:
            return None
        async with session.finishing:
            if session.drift is None:
                session.drift = await self._measured(session.drifts)
                self.metrics.drift.labels(session.history).inc(session.drift.tokens)
        return session.drift

    async def _measured(self, drifts: Drifts) -> SessionDrift:
        """In a thread where that takes long: to get there and back costs as much as to measure a short session."""
        if drifts.num_ids > SHORT_IDS:
            return await asyncio.to_thread(drifts.measure, self._renderer)
        await self.pacer.turn()
        return drifts.measure(self._renderer)

    async def reward(
        self,
        session: Session,
        reward: float | None,
        components: Mapping[str, float | None] | None,
        call_id: str | None,
        of_calls: Mapping[str, float | None] | None = None,
    ) -> None:
        """Sets a reward, of the session or of one call, and those `of_calls` by their ids.

        After finish, the session's is told to the store before this returns. Raises Refusal.
        """
        named = dict(of_calls or {})
        async with session.finishing:
            if session.sealed and (call_id is not None or named):
                raise Refusal(
                    409, "session_sealed", f"session {session.id} is finished; a call's reward comes before that"
                )
            for each, of_call in named.items():
                session.set_reward(of_call, None, each)
                await self.books.rewarded(session, each)
            session.set_reward(reward, components, call_id)
            session.last_used = time.time()
            if not session.sealed:
                await self.books.rewarded(session, call_id)
            if session.saved and self._archive is not None:
                session.stored_score = None  # somebody else may have scored it in the store since
                await self._archive.update(session)

    async def forget(self, session_id: str) -> None:
        session = self.sessions.forget(session_id)
        self.pools.forget_session(session_id)
        await session.seal(None, time.time())
        if not session.saved:
            await self.books.forget(session)

    async def expire_forever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            await self.expire(time.time())

    async def expire(self, now: float) -> None:
        """Ends the sessions that nobody finished; each wait for the store is bounded."""
        outcomes = await asyncio.gather(
            *(self._abandon(session) for session in self.sessions.expire(now)), return_exceptions=True
        )
        for error in outcomes:
            if isinstance(error, Exception):  # one session that cannot be ended is no reason to end no other
                logger.error("a session was not abandoned in an unforeseen way", exc_info=error)

    async def _abandon(self, session: Session) -> None:
        """Saves what a train session sampled, for its tokens count; one that the store cannot take now stays.

        One whose journal the store cannot forget now is forgotten here: the next gateway abandons it again.
        """
        outcome = "empty"
        if session.graph.calls and session.mode == "train" and self._archive is not None:
            outcome = "saved"
            try:
                await self.finish(session, ABANDONED)
            except Refusal as refusal:
                logger.warning("session %s was abandoned and not saved: %s", session.id, refusal)
                if refusal.retry_after is not None:
                    return
                outcome = "lost"
        if outcome != "saved" and session.id in self.sessions:
            try:
                await self.forget(session.id)
            except Refusal as refusal:
                logger.warning("the journal of abandoned session %s stays: %s", session.id, refusal)
        self.metrics.abandoned.labels(outcome).inc()

    def _unsaved(self) -> int:
        return sum(not session.saved for session in self.sessions)


async def stop_task(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
