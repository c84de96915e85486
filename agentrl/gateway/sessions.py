"""All sessions of one gateway: found by id or key, bounded in number, forgotten when abandoned. No I/O."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterator
from typing import Any

from agentrl.gateway.keys import key_digest, new_session_key
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.session import Session
from agentrl.gateway.workers.placement import ALONE, Placement, place

SESSION_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,200}")
"""It stands in URLs, where clients take "." and ".." for folders."""


class SessionRegistry:
    """Holds at most `max_sessions`. Times count from a session's last use and take effect at the next `expire`: one
    whose trajectory is in the store is released after `saved_idle_s` seconds and forgotten after `idle_s`.
    """

    def __init__(self, *, max_sessions: int, idle_s: float, saved_idle_s: float, placement: Placement = ALONE) -> None:
        self._placement = placement
        self._max_sessions = max_sessions
        self._idle_s = idle_s
        self._saved_idle_s = saved_idle_s
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[bytes, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._by_id

    def create(self, session_id: str | None, *, now: float, **opened_with: Any) -> tuple[Session, str]:
        """A new session and its random key. Raises Refusal: the id is taken (409), too many sessions (429)."""
        session_id = session_id or self._placement.new_session_id()
        if session_id in self._by_id:
            raise Refusal(409, "session_exists", f"session {session_id!r} exists already", param="session_id")
        if not SESSION_ID.fullmatch(session_id):
            raise invalid("session_id", f"session_id {session_id!r} is not 1 to 200 letters, digits, '-', '_' and '.'")
        if len(self._by_id) >= self._max_sessions:
            self._make_room()
        key = new_session_key(place(session_id))
        session = Session(session_id, key_digest(key), now=now, **opened_with)
        self.adopt(session)
        return session, key

    def adopt(self, session: Session) -> None:
        """Holds a session that was made elsewhere."""
        self._by_id[session.id] = session
        self._by_key[session.key_digest] = session

    def get(self, session_id: str) -> Session:
        """Raises Refusal (404) when there is none."""
        if (session := self._by_id.get(session_id)) is None:
            raise Refusal(404, "session_not_found", f"there is no session {session_id!r}", param="session_id")
        return session

    def by_key(self, key: str) -> Session | None:
        """The session that `key` opens. Found by digest, so that timing tells nothing about a key."""
        digest = key_digest(key)
        session = self._by_key.get(digest)
        return session if session is not None and hmac.compare_digest(digest, session.key_digest) else None

    def forget(self, session_id: str) -> Session:
        session = self.get(session_id)
        del self._by_id[session_id]
        del self._by_key[session.key_digest]
        return session

    def expire(self, now: float) -> list[Session]:
        """Returns the sessions that were abandoned, still held. One with a call in flight is in use."""
        abandoned = []
        for session in self:
            idle_s = now - session.last_used
            if session.saved and idle_s > self._saved_idle_s and not session.released:
                session.release()
            if idle_s > self._idle_s and not session.in_flight:
                if session.saved:
                    self.forget(session.id)
                else:
                    abandoned.append(session)
        return abandoned

    def _make_room(self) -> None:
        """Forgets the saved session that was opened first; it is durable elsewhere."""
        saved = next((session for session in self._by_id.values() if session.saved), None)
        if saved is None:
            raise Refusal(
                429,
                "too_many_sessions",
                f"the gateway holds its {self._max_sessions} sessions; finish or delete some, or raise max_sessions",
                retry_after=5,
            )
        self.forget(saved.id)
