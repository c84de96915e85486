"""Whether a group goes on waiting for an attempt. Pure: times are the caller's."""

from __future__ import annotations

from msgspec import Struct

from agentrl.rollout.config import RolloutConfig


class Completeness(Struct, frozen=True, kw_only=True):
    """Without `minimum` and `replacements` every attempt is waited for, and what it came to is taken."""

    minimum: int | None = None  # attempts that ended well which suffice, once the others are late
    patience_s: float = 0.0  # how long the others are waited for from then on
    replacements: int = 0  # failed attempts of a group that are played afresh

    @classmethod
    def of(cls, config: RolloutConfig) -> Completeness:
        if config.incomplete == "minimum":
            return cls(minimum=config.minimum_group_size, patience_s=config.patience_s)
        return cls(replacements=config.max_replacements if config.incomplete == "refill" else 0)


class Attendance:
    """One group's attempts as they end."""

    def __init__(self, rules: Completeness) -> None:
        self._rules = rules
        self._well = 0
        self._replaced = 0
        self.late_at: float | None = None  # when those that are left are no longer waited for

    def ended(self, *, well: bool, now: float) -> bool:
        """Whether the attempt is to be played afresh."""
        self._well += well
        if self._rules.minimum is not None and self.late_at is None and self._well >= self._rules.minimum:
            self.late_at = now + self._rules.patience_s
        if well or self._replaced >= self._rules.replacements:
            return False
        self._replaced += 1
        return True
