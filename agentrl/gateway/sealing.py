"""Ends the sessions that a gateway left open and that nobody will go on with: their episodes died with the run.

What they had sampled is kept as trajectories, so that every token is counted (invariants 2 and 7).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from agentrl.errors import StoreError
from agentrl.gateway.journal import Replayed, replay
from agentrl.gateway.ports import TrajectorySink
from agentrl.gateway.session import Session
from agentrl.types import Trajectory

logger = logging.getLogger(__name__)


class Sealed(NamedTuple):
    """What was ended: sessions that had sampled something, and their sampled tokens."""

    sessions: int = 0
    tokens: int = 0


async def seal_left_behind(sink: TrajectorySink, owner: str, stop_reason: str, *, now: float) -> Sealed:
    """Saves the sessions that the gateway `owner` left open; no gateway of this name runs.

    A session without a call leaves nothing. One whose journal is damaged stays where it is, and is named in the log.
    """
    sealed = Sealed()
    for session_id, events in sink.journal(owner):
        try:
            state = replay(session_id, events)
        except StoreError as error:
            logger.error("session %s cannot be ended: %s", session_id, error)
            continue
        if state.calls:
            sink.save(await _ended(state, stop_reason, now))
            sealed = Sealed(sealed.sessions + 1, sealed.tokens + sum(len(call.token_ids) for call in state.calls))
        else:
            sink.forget_journal(session_id)
    return sealed


async def _ended(state: Replayed, stop_reason: str, now: float) -> Trajectory:
    opened = msgspec.structs.asdict(state.opened)
    opened["now"] = opened.pop("created_at")
    session = Session.restore(opened, state.calls, state.reward, state.components)
    await session.seal(stop_reason, now)
    return session.trajectory()
