"""Sessions and the trajectory store: journaled while they go on, saved once, scored as often as asked, found later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from agentrl.errors import StoreError, StoreUnavailable, TrajectoryNotFound
from agentrl.gateway.commits import GroupCommit
from agentrl.gateway.journal import Replayed, replay
from agentrl.gateway.pacing import Pacer
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.session import Session
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")


def every(session_id: str) -> bool:
    return True


class Archive:
    """Waits at most `timeout_s` for the store. `owner` is the gateway's name, of which a store knows one at a time.

    Raises Refusal: 503 with retry_after when the same may work later, 500 when the store refuses for good.
    """

    def __init__(
        self, sink: TrajectorySink, *, timeout_s: float, owner: str = "gateway", pacer: Pacer | None = None
    ) -> None:
        self._sink = sink
        self._timeout_s = timeout_s
        self._owner = owner
        self._pacer = pacer or Pacer()
        self.commits = GroupCommit(sink, owner=owner, timeout_s=timeout_s)
        self.damaged: set[str] = set()
        """Sessions whose journal cannot be read. It stays in the store; their ids are not to be used again."""

    async def recover(self, owns: Callable[[str], bool] = every) -> AsyncIterator[Replayed]:
        """The sessions that a gateway of this name left open, as they were opened; damaged ones are reported.

        Those of whose ids `owns` says no are another worker's.

        Raises StoreError when the store itself cannot be read.
        """
        sessions = await asyncio.to_thread(self._sink.journal, self._owner)
        while (found := await asyncio.to_thread(next, sessions, None)) is not None:
            session_id, events = found
            if not owns(session_id):
                continue
            try:
                replayed = await asyncio.to_thread(replay, session_id, events)
            except StoreError as error:
                self.damaged.add(session_id)
                logger.error("session %s does not come back: %s", session_id, error)
                continue
            yield replayed

    async def update(self, session: Session) -> None:
        """Saves a sealed session, unless that was done, and its reward, unless the store has it.

        What is too slow goes on in the background, and the next call waits for it. Callers hold `session.finishing`.
        """
        if session.storing is None or session.storing.done():
            session.storing = asyncio.create_task(self._update(session), name=f"storing of {session.id}")
            session.storing.add_done_callback(_log_failure)
        await self._in_time(asyncio.shield(session.storing), f"take session {session.id}")

    async def find(self, session_id: str) -> Trajectory | None:
        def read() -> Trajectory | None:
            try:
                return self._sink.get(session_id)
            except TrajectoryNotFound:
                return None

        return await self._in_time(asyncio.to_thread(read), f"give session {session_id}")

    async def holds(self, session_id: str) -> bool:
        """Whether this id is taken: by a stored session, a damaged one, or an open one of another gateway."""
        if session_id in self.damaged or await self.find(session_id) is not None:
            return True
        return await self._in_time(asyncio.to_thread(self._sink.has_journal, session_id), f"look for {session_id}")

    async def forget(self, session_id: str) -> None:
        """A session that nobody will save does not come back."""
        await self.commits.end(session_id)
        await self._in_time(self.commits.between(self._sink.forget_journal, session_id), f"forget session {session_id}")

    async def close(self) -> None:
        await self.commits.close()

    async def _update(self, session: Session) -> None:
        if not session.saved:
            await self.commits.end(session.id)
            await self._pacer.turn()
            session.settled = True
            trajectory = session.trajectory()
            await self.commits.save(trajectory)
            session.saved, session.stored_score = True, (trajectory.reward, trajectory.components)
        while (score := session.score) != session.stored_score:  # one may come while another is being stored
            await self.commits.between(self._sink.set_reward, session.id, *score)
            session.stored_score = score

    async def _in_time(self, work: Awaitable[T], doing: str) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await work
        except TimeoutError:
            message = f"the store did not {doing} in {self._timeout_s:g} s; ask again"
            raise Refusal(503, "store_slow", message, retry_after=5) from None
        except StoreUnavailable as error:
            raise Refusal(503, "store_failed", f"the store did not {doing}: {error}", retry_after=5) from error
        except StoreError as error:
            raise Refusal(500, "store_refused", f"the store does not {doing}: {error}") from error


def _log_failure(storing: asyncio.Task[None]) -> None:
    if not storing.cancelled() and (error := storing.exception()) is not None:
        logger.warning("%s failed: %s", storing.get_name(), error)
