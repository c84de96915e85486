"""Keys: random or derived from a random one, compared in constant time, never logged."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

KEY = re.compile(r"[!-~]+")
SESSION_PREFIX, RUN_PREFIX, ADMIN_PREFIX = "sk-agentrl-", "sk-agentrl-run-", "sk-agentrl-admin-"
PLACED = re.compile(SESSION_PREFIX + r"([0-9a-f]{8})-")


def new_session_key(place: int = 0) -> str:
    """`place` is that of the session's id (32 bits, no secret): by it a worker that does not know a key finds the one
    that does.
    """
    return f"{SESSION_PREFIX}{place:08x}-{secrets.token_urlsafe(32)}"


def place_of_key(key: str) -> int | None:
    """What a session's key says of its place; None for any other key. It proves nothing."""
    found = PLACED.match(key)
    return None if found is None else int(found[1], 16)


def new_admin_key() -> str:
    return ADMIN_PREFIX + secrets.token_urlsafe(32)


def run_key(admin_key: str, run_id: str) -> str:
    """The key of a run. It follows from the admin key, so a gateway that comes back knows it without a record."""
    mac = hmac.new(admin_key.encode(), b"run " + run_id.encode(), hashlib.sha256).hexdigest()
    return f"{RUN_PREFIX}{run_id}.{mac}"


def run_of(key: str, admin_key: str) -> str | None:
    """The run that a key opens; None for any other key."""
    if not key.startswith(RUN_PREFIX):
        return None
    run_id = key.removeprefix(RUN_PREFIX).rpartition(".")[0]
    return run_id if run_id and same_key(key, run_key(admin_key, run_id)) else None


def key_digest(key: str) -> bytes:
    """What a key is looked up by, so that the timing of a look-up tells nothing about a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def same_key(given: str, expected: str) -> bool:
    return hmac.compare_digest(key_digest(given), key_digest(expected))
