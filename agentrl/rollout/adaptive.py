"""How many episodes the engines bear: additive increase, multiplicative decrease. Pure: it is told their load."""

from __future__ import annotations

from msgspec import Struct

from agentrl.rollout.config import AdaptiveConfig

BACKOFF = 0.75
"""What a decrease leaves of the episodes under way."""

STEPS = 32
"""Increases from nothing to the upper bound, once the first pressure was felt; before it, each doubles."""


class Load(Struct, frozen=True, kw_only=True):
    """What the engines say of themselves. Made by `agentrl.rollout.load`."""

    kv_use: float = 0.0  # of the engine that has least left: the share of its KV cache that requests hold
    running: int = 0  # requests in the batches of all engines
    waiting: int = 0  # requests that wait for a place in one, at the engines or at the gateway
    preemptions: int = 0  # of all engines since they started


class AdaptiveLimit:
    """The limit of episodes under way, between `config.minimum` and `maximum`.

    It falls when an engine preempts, holds more of its KV cache than it should, or more requests wait than run. It
    rises only when it is what keeps further episodes from starting, and nothing waits. Nothing changes while more are
    under way than it says: the last decrease has not had its effect.
    """

    def __init__(self, config: AdaptiveConfig, maximum: int) -> None:
        self.limit = min(config.minimum, maximum)
        self._minimum = self.limit
        self._maximum = maximum
        self._target = config.target_kv_use
        self._felt = False  # pressure, ever
        self._preemptions: int | None = None  # as seen last

    def see(self, load: Load, *, under_way: int) -> int:
        """The limit from now on."""
        preempted = self._preemptions is not None and load.preemptions > self._preemptions
        self._preemptions = load.preemptions
        if under_way > self.limit:
            return self.limit
        if preempted or load.kv_use > self._target or load.waiting > load.running:
            self._felt = True
            self.limit = max(self._minimum, int(under_way * BACKOFF))
        elif under_way == self.limit and load.waiting == 0:
            more = max(1, self._maximum // STEPS) if self._felt else self.limit
            self.limit = min(self._maximum, self.limit + more)
        return self.limit
