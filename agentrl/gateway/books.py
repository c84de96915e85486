"""What a gateway writes down of its open sessions, so that the next one of its name can go on with them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from agentrl.gateway.archive import Archive, every
from agentrl.gateway.journal import CallAdded, CallChanged, Event, Opened, Rewarded
from agentrl.gateway.pacing import Pacer
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.session import Session

logger = logging.getLogger(__name__)


class Books:
    """Without an archive nothing is kept. Each method raises Refusal (503, 500).

    One transaction makes many calls durable at a time; their requests go on one by one, as the pacer lets them.
    """

    def __init__(self, archive: Archive | None, pacer: Pacer | None = None) -> None:
        self._archive = archive
        self._pacer = pacer or Pacer()
        self._unattended: set[asyncio.Task[None]] = set()

    async def opened(self, session: Session) -> None:
        """Returns when the session is durable."""
        await self._queue(session, [Opened(**_opened_with(session), limits=session.limits)])
        await self._pacer.turn()

    async def added(self, session: Session) -> None:
        """Returns when all calls of the session are durable. One that finds no room is written with the next one."""
        calls = session.graph.calls
        new = range(session.journaled, len(calls))
        durable = self._queue(
            session,
            [CallAdded.to(calls[:index], calls[index], session.asked.get(calls[index].call_id)) for index in new],
        )
        for index in new:
            session.asked.pop(calls[index].call_id, None)
        session.journaled = len(calls)
        await durable
        await self._pacer.turn()

    def changed(self, session: Session, index: int) -> None:
        """Of a call that was added. Nobody waits for it; what goes wrong is logged."""
        if index >= session.journaled:  # it found no room, and will be written as it is then
            return
        try:
            durable = self._queue(session, [_change(session, index)])
        except Refusal as refusal:
            logger.error("a change of session %s was not journaled: %s", session.id, refusal)
            return
        task = asyncio.create_task(durable, name=f"change of {session.id}")
        self._unattended.add(task)
        task.add_done_callback(self._attend)

    async def rewarded(self, session: Session, call_id: str | None) -> None:
        """Returns when the reward of the session, or of one call, is durable."""
        index = None if call_id is None else session.graph.find(call_id)
        if index is None:
            await self._queue(session, [Rewarded(reward=session.reward, components=session.components)])
        elif index >= session.journaled:
            await self.added(session)
        else:
            await self._queue(session, [_change(session, index)])

    async def forget(self, session: Session) -> None:
        """Of a session that nobody will save."""
        if self._archive is not None:
            await self._archive.forget(session.id)

    async def left_behind(self, owns: Callable[[str], bool] = every) -> list[Session]:
        """The sessions of the gateway of this name that was here before, where `owns` says so of their ids.

        Raises StoreError.
        """
        if self._archive is None:
            return []
        sessions = []
        async for state in self._archive.recover(owns):
            opened = msgspec.structs.asdict(state.opened)
            opened["now"] = opened.pop("created_at")
            session = Session.restore(opened, state.calls, state.reward, state.components, state.asked)
            session.last_used = time.time()  # when it was really used, nobody wrote down
            sessions.append(session)
        return sessions

    def _queue(self, session: Session, events: list[Event]) -> Coroutine[Any, Any, None]:
        """To be awaited. In the order of these calls, whenever that is. Raises Refusal with nothing queued."""
        if self._archive is None or not events:
            return _nothing()
        commits = self._archive.commits
        return commits.queue(*(commits.entry(session.id, event) for event in events))

    def _attend(self, task: asyncio.Task[None]) -> None:
        self._unattended.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s was not journaled: %s", task.get_name(), error)


async def _nothing() -> None:
    """Nothing to wait for."""


def _opened_with(session: Session) -> dict[str, Any]:
    names = ("key_digest", "run_id", "task", "metadata", "pins", "mode", "reward_by", "history", "across_swaps")
    return {name: getattr(session, name) for name in names} | {
        "session_id": session.id,
        "created_at": session.created_at,
    }


def _change(session: Session, index: int) -> CallChanged:
    call = session.graph.calls[index]
    return CallChanged(index=index, untrainable=call.untrainable, reward=call.reward)
