"""Roles: several speakers in one episode, each with a session, a system prompt and a reward of its own."""

from __future__ import annotations

from msgspec import Struct


class Role(Struct, frozen=True, kw_only=True):
    """One speaker. Its name is the key under which it stands in `roles`."""

    train: bool = True
    """False: the role is only sampled. Its session is kept, and never trained."""

    system: str | None = None
    """The first message of its conversation."""
