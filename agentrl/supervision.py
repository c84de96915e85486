"""When a part of a run that died is started again, and when it is given up. Pure: the caller brings time and chance.

well ── died, or hangs ──► down ── its wait is over ──► restarting ── up ──► well
                             ▲                              │
                             └──────── did not come up ─────┘
down ── restarts within the window used up ──► given up
"""

from __future__ import annotations

from collections import deque

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from agentrl.section import Section

MAX_DOUBLINGS = 64


class SupervisionConfig(Section):
    """What becomes of an engine, the gateway, a rollout worker or a reward service that dies or hangs."""

    max_restarts: int = Field(default=10, ge=0)
    """How often one part is started again within `window_s`; the next death ends the run. 0: the first one does."""

    window_s: PositiveFloat = 900.0
    """Seconds after which a restart counts no more."""

    backoff_s: PositiveFloat = 0.5
    """Wait before the first restart; it doubles with each that the window still counts. Up to half of it is random."""

    backoff_max_s: PositiveFloat = 30.0
    """The longest that it gets."""

    probe_every_s: PositiveFloat = 1.0
    """Seconds between two looks at a part: how soon a death is seen."""

    probe_timeout_s: PositiveFloat = 5.0
    """How long a part may take to say that it is well."""

    probe_failures: PositiveInt = 4
    """Looks in a row without an answer, after which a part that still runs counts as hung, and is killed."""

    @model_validator(mode="after")
    def _backoff_can_grow(self) -> SupervisionConfig:
        if self.backoff_max_s < self.backoff_s:
            raise ValueError(
                f"backoff_max_s is {self.backoff_max_s:g} and backoff_s is {self.backoff_s:g}; the first must not be "
                "the smaller one"
            )
        return self

    @property
    def longest_recovery_s(self) -> float:
        """All waits of one part until it is given up, its own start-ups left out."""
        return (self.max_restarts + 1) * self.backoff_max_s


class Restarts:
    """Of one part. `now` is any clock in seconds that never goes back, the same in all calls."""

    def __init__(self, policy: SupervisionConfig) -> None:
        self._policy = policy
        self._begun: deque[float] = deque()  # of the restarts in the window
        self.count = 0  # since the run began

    def after_failure(self, now: float, *, jitter: float) -> float | None:
        """It died, or did not come up: seconds to wait before it is started again; None when it is given up.

        jitter in [0, 1] takes up to half of the wait.
        """
        while self._begun and self._begun[0] <= now - self._policy.window_s:
            self._begun.popleft()
        if len(self._begun) >= self._policy.max_restarts:
            return None
        longest = self._policy.backoff_s * 2.0 ** min(len(self._begun), MAX_DOUBLINGS)
        self._begun.append(now)
        self.count += 1
        return min(self._policy.backoff_max_s, longest) * (1 - jitter / 2)
