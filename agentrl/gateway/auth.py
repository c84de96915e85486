"""Who asks: the admin, or one session. Keys are compared in constant time and never logged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from agentrl.gateway.keys import same_key
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.session import Session
from agentrl.gateway.sessions import SessionRegistry


def given_key(headers: Mapping[str, str]) -> str:
    """The key of a request: `Authorization: Bearer KEY` or `x-api-key: KEY`. Raises Refusal (401) without one."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    bearer = key.strip() if scheme.lower() == "bearer" else ""
    key = bearer or headers.get("x-api-key", "").strip()
    if not key:
        raise Refusal(401, "missing_api_key", "no key was given; send it as 'Authorization: Bearer KEY'")
    return key


class Auth:
    """`find` gives the session of an id, wherever it is; raises Refusal (404)."""

    def __init__(self, admin_key: str, sessions: SessionRegistry, find: Callable[[str], Awaitable[Session]]) -> None:
        self._admin_key = admin_key
        self._sessions = sessions
        self._find = find

    def is_admin(self, headers: Mapping[str, str]) -> bool:
        return same_key(given_key(headers), self._admin_key)

    def require_admin(self, headers: Mapping[str, str]) -> None:
        """Raises Refusal: 403 for a session's key, 401 for an unknown one."""
        if not self.is_admin(headers):
            self._known_session(headers)
            raise Refusal(403, "admin_only", "a session's key does not open this; use the admin key")

    def require_any(self, headers: Mapping[str, str]) -> None:
        """Lets in the admin and every session."""
        if not self.is_admin(headers):
            self._known_session(headers)

    async def session_of(self, headers: Mapping[str, str], path_id: str | None) -> Session:
        """The session of a call: its own key names it; the admin names it in the path or in X-Session-ID.

        Raises Refusal: 401 unknown key, 403 another session's key, 404 no such session, 400 the admin named none.
        """
        named = path_id or headers.get("x-session-id")
        if self.is_admin(headers):
            if named is None:
                raise invalid(
                    "X-Session-ID", "the admin key names no session: send X-Session-ID or use /sessions/ID/v1"
                )
            return await self._find(named)
        session = self._known_session(headers)
        if named is not None and named != session.id:
            raise Refusal(403, "wrong_session", "this key opens another session only")
        return session

    def _known_session(self, headers: Mapping[str, str]) -> Session:
        session = self._sessions.by_key(given_key(headers))
        if session is None:
            raise Refusal(
                401, "invalid_api_key", "the key is not known here; use the session's own key or the admin key"
            )
        return session
