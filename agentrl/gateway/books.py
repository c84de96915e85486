"""What a gateway writes down of its open sessions, so that the next one of its name can go on with them."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec

from agentrl.gateway.archive import Archive
from agentrl.gateway.journal import CallAdded, CallChanged, Event, Opened, Rewarded
from agentrl.gateway.session import Session

logger = logging.getLogger(__name__)


class Books:
    """Without an archive nothing is kept. Each method raises Refusal (503, 500)."""

    def __init__(self, archive: Archive | None) -> None:
        self._archive = archive
        self._unattended: set[asyncio.Task[None]] = set()

    async def opened(self, session: Session) -> None:
        """Returns when the session is durable."""
        await self._append(session, [Opened(**_opened_with(session), limits=session.limits)])

    async def added(self, session: Session) -> None:
        """Returns when all calls of the session are durable."""
        calls = session.graph.calls
        new = range(session.journaled, len(calls))
        session.journaled = len(calls)
        await self._append(session, [CallAdded.to(calls[:index], calls[index]) for index in new])

    def changed(self, session: Session, index: int) -> None:
        """Of a call that was added. Nobody waits for it; what goes wrong is logged."""
        task = asyncio.create_task(self._append(session, [_change(session, index)]), name=f"change of {session.id}")
        self._unattended.add(task)
        task.add_done_callback(self._attend)

    async def rewarded(self, session: Session, call_id: str | None) -> None:
        """Returns when the reward of the session, or of one call, is durable."""
        index = None if call_id is None else session.graph.find(call_id)
        if index is None:
            await self._append(session, [Rewarded(reward=session.reward, components=session.components)])
        else:
            await self._append(session, [_change(session, index)])

    async def forget(self, session: Session) -> None:
        """Of a session that nobody will save."""
        if self._archive is not None:
            await self._archive.forget(session.id)

    async def left_behind(self) -> list[Session]:
        """The sessions of the gateway of this name that was here before. Raises StoreError."""
        if self._archive is None:
            return []
        sessions = []
        async for state in self._archive.recover():
            opened = msgspec.structs.asdict(state.opened)
            opened["now"] = opened.pop("created_at")
            sessions.append(Session.restore(opened, state.calls, state.reward, state.components))
        return sessions

    async def _append(self, session: Session, events: list[Event]) -> None:
        if self._archive is not None and events:
            commits = self._archive.commits
            await commits.append(*(commits.entry(session.id, event) for event in events))

    def _attend(self, task: asyncio.Task[None]) -> None:
        self._unattended.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s was not journaled: %s", task.get_name(), error)


def _opened_with(session: Session) -> dict[str, Any]:
    names = ("key_digest", "run_id", "task", "metadata", "pins", "mode", "reward_by", "history", "across_swaps")
    return {name: getattr(session, name) for name in names} | {
        "session_id": session.id,
        "created_at": session.created_at,
    }


def _change(session: Session, index: int) -> CallChanged:
    call = session.graph.calls[index]
    return CallChanged(index=index, untrainable=call.untrainable, reward=call.reward)
