"""Keys: random, compared in constant time, never logged."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

KEY = re.compile(r"[!-~]+")
SESSION_PREFIX, ADMIN_PREFIX = "sk-agentrl-", "sk-agentrl-admin-"


def new_session_key() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(32)


def new_admin_key() -> str:
    return ADMIN_PREFIX + secrets.token_urlsafe(32)


def key_digest(key: str) -> bytes:
    """What a key is looked up by, so that the timing of a look-up tells nothing about a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def same_key(given: str, expected: str) -> bool:
    return hmac.compare_digest(key_digest(given), key_digest(expected))
