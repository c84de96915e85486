"""Who asks: the admin, a run, or one session. Keys are compared in constant time and never logged."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from agentrl.gateway.keys import key_digest, run_key, run_of
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


class Controller(Struct, frozen=True):
    """Who may open and close sessions: the admin, or one run's key for the sessions and engines of that run alone."""

    run_id: str | None = None  # None is the admin

    def check(self, session: Session) -> Session:
        """Raises Refusal (404): to a run, the sessions of others do not exist."""
        if self.run_id is not None and session.run_id != self.run_id:
            raise Refusal(404, "session_not_found", f"there is no session {session.id!r}", param="session_id")
        return session


class Auth:
    """`find` gives the session of an id, wherever it is; raises Refusal (404)."""

    def __init__(self, admin_key: str, sessions: SessionRegistry, find: Callable[[str], Awaitable[Session]]) -> None:
        self._admin_key = admin_key
        self._admin_digest = key_digest(admin_key)
        self._sessions = sessions
        self._find = find

    def controller(self, headers: Mapping[str, str]) -> Controller | None:
        """None for a key that is no controller's. Raises Refusal (401) without a key."""
        key = given_key(headers)
        if hmac.compare_digest(key_digest(key), self._admin_digest):
            return Controller()
        run_id = run_of(key, self._admin_key)
        return None if run_id is None else Controller(run_id)

    def require_controller(self, headers: Mapping[str, str]) -> Controller:
        """Raises Refusal: 403 for a session's key, 401 for an unknown one."""
        if (controller := self.controller(headers)) is None:
            self._known_session(headers)
            raise Refusal(403, "admin_only", "a session's key does not open this; use the admin key or the run's")
        return controller

    def require_admin(self, headers: Mapping[str, str]) -> None:
        """Raises Refusal: 403 for a session's or a run's key, 401 for an unknown one."""
        if self.require_controller(headers).run_id is not None:
            raise Refusal(403, "admin_only", "a run's key does not open this; use the admin key")

    def require_any(self, headers: Mapping[str, str]) -> None:
        """Lets in the admin, every run and every session."""
        if self.controller(headers) is None:
            self._known_session(headers)

    def key_of_run(self, run_id: str) -> str:
        return run_key(self._admin_key, run_id)

    async def session_of(self, headers: Mapping[str, str], path_id: str | None) -> Session:
        """The session of a call: its own key names it; a controller names it in the path or in X-Session-ID.

        Raises Refusal: 401 unknown key, 403 another session's key, 404 no such session, 400 the controller named none.
        """
        named = path_id or headers.get("x-session-id")
        controller = self.controller(headers)
        if controller is not None:
            if named is None:
                raise invalid("X-Session-ID", "this key names no session: send X-Session-ID or use /sessions/ID/v1")
            return controller.check(await self._find(named))
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
