"""The coefficient of the divergence, fixed or held at a target by feedback.

    e    = clip((KL - target) / target, -0.2, 0.2)
    beta = beta * (1 + e * min(1, tokens / horizon))

Source: Ziegler et al., "Fine-Tuning Language Models from Human Preferences", arXiv:1909.08593, section 2.2. Their
factor of e is a constant; here it grows with the trained tokens of a step, so that the size of a step does not change
how fast the coefficient follows. The minimum keeps a step from changing it by more than a fifth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LARGEST_ERROR = 0.2


@dataclass(frozen=True)
class KlController:
    """A value: each step makes the next one. Without a target the coefficient never changes."""

    coefficient: float
    target: float | None  # nats a token
    horizon: int  # trained tokens

    def restored(self, coefficient: float) -> KlController:
        """The controller that goes on from `coefficient`; a fixed one keeps its own."""
        return self if self.target is None else replace(self, coefficient=coefficient)

    def after(self, kl: float, tokens: int) -> KlController:
        """The controller for the next step. kl: mean over the step's `tokens` trained tokens, in nats.

        A divergence that is not finite says nothing, and changes nothing.
        """
        if self.target is None or not math.isfinite(kl):
            return self
        error = min(max((kl - self.target) / self.target, -LARGEST_ERROR), LARGEST_ERROR)
        return replace(self, coefficient=self.coefficient * (1.0 + error * min(1.0, tokens / self.horizon)))
