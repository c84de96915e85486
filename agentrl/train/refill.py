"""Groups without signal are replaced by others, within a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentrl.train.advantage import AdvantageEstimator
from agentrl.train.batch import ScoredGroup, has_signal
from agentrl.train.config import AlgorithmConfig


@dataclass(frozen=True)
class Refill:
    """Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2): a group without signal is replaced by another one.

    At most `limit` in a step, so that a policy that solves everything, or nothing, is no hang.
    """

    has_signal: Callable[[ScoredGroup], bool]
    limit: int

    @classmethod
    def of(cls, algorithm: AlgorithmConfig, estimate: AdvantageEstimator) -> Refill | None:
        """What the configuration says; None where groups without signal are not replaced."""
        if algorithm.zero_variance != "refill":
            return None
        return cls(lambda scored: has_signal(scored, estimate), algorithm.max_refills)
