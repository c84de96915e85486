"""From the parts of a reward to the reward. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from agentrl.reward.protocol import Score


class Reward(NamedTuple):
    value: float | None  # None is missing, never 0
    components: dict[str, float | None]  # each part before its weight, under its own name


def compose(env: float | None, scores: Mapping[str, Score], weights: Mapping[str, float]) -> Reward:
    """The weighted sum of the environment's reward and the services' (`scores` by service name).

    `weights` has "env" and every service. A part whose weight is not 0 is required: without it the reward is missing.
    A service's own components are kept as `service.component`.
    """
    parts = {"env": env, **{name: score.reward for name, score in scores.items()}}
    components = dict(parts)
    for name, score in scores.items():
        components |= {f"{name}.{part}": value for part, value in score.components.items()}
    terms = [weights[name] * value for name, value in parts.items() if weights[name] != 0 and value is not None]
    required = sum(weights[name] != 0 for name in parts)
    return Reward(_total(terms) if len(terms) == required else None, components)


def _total(terms: Sequence[float]) -> float | None:
    """None when the sum is past the floats: that is no reward, and no reason to end a run."""
    try:
        total = math.fsum(terms)
    except OverflowError:
        return None
    return total if math.isfinite(total) else None
