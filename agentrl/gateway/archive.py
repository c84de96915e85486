"""Sessions and the trajectory store: each is saved once, scored as often as asked, and found again later."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import TypeVar

from agentrl.errors import StoreError, StoreUnavailable, TrajectoryNotFound
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.session import Session
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Archive:
    """Waits at most `timeout_s` for the store.

    Raises Refusal: 503 with retry_after when the same may work later, 500 when the store refuses for good.
    """

    def __init__(self, sink: TrajectorySink, *, timeout_s: float) -> None:
        self._sink = sink
        self._timeout_s = timeout_s

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

    async def _update(self, session: Session) -> None:
        if not session.saved:
            trajectory = session.trajectory()
            await asyncio.to_thread(self._sink.save, trajectory)
            session.saved, session.stored_score = True, (trajectory.reward, trajectory.components)
        while (score := session.score) != session.stored_score:  # one may come while another is being stored
            await asyncio.to_thread(self._sink.set_reward, session.id, *score)
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
