"""From the parts of a reward to the reward. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import UNSET

from agentrl.reward.config import GateConfig, OverlongConfig, RewardConfig
from agentrl.reward.protocol import Score


class Reward(NamedTuple):
    value: float | None  # None is missing, never 0
    components: dict[str, float | None]  # each part before its weight, under its own name
    calls: list[float | None] | None = None  # of the episode's messages in their order, weighted; None for none


def compose(
    env: float | None, scores: Mapping[str, Score], config: RewardConfig, *, tokens: int | None = None
) -> Reward:
    """The reward of one episode from the environment's, the others' by name, and how many tokens were sampled.

    A part whose weight is not 0 is required: without it the reward is missing. Another part's own components are kept
    as `part.component`. `tokens` is needed where length is shaped; without it the reward is missing then.
    """
    parts = {"env": env, **{name: score.reward for name, score in scores.items()}}
    components = dict(parts)
    for name, score in scores.items():
        components |= {f"{name}.{part}": value for part, value in score.components.items()}
    value = weighted_sum(parts, config.weights)
    if config.shapes_length:
        components["length"] = length = None if tokens is None else length_term(tokens, config)
        value = None if value is None or length is None else value + length
    value = gated(value, components, config.gates)
    if value is not None and config.clip is not None:
        value = min(max(value, config.clip[0]), config.clip[1])
    finite = value is None or math.isfinite(value)
    return Reward(value if finite else None, components, _calls(scores, config.weights))


def weighted_sum(parts: Mapping[str, float | None], weights: Mapping[str, float]) -> float | None:
    """None when a part with a weight is missing, and for a sum past the floats: that is no reward."""
    counting = [(weights[name], value) for name, value in parts.items() if weights[name] != 0]
    terms = [weight * value for weight, value in counting if value is not None]
    if len(terms) < len(counting):
        return None
    try:
        total = math.fsum(terms)
    except OverflowError:
        return None
    return total if math.isfinite(total) else None


def length_term(tokens: int, config: RewardConfig) -> float:
    """What the length adds to the reward: never more than 0."""
    punished = overlong_penalty(tokens, config.overlong) if config.overlong is not None else 0.0
    return punished - config.token_cost * tokens


def overlong_penalty(tokens: int, config: OverlongConfig) -> float:
    """0 up to `limit - buffer` sampled tokens, then down to `-penalty` at `limit` and beyond (DAPO, equation 13)."""
    beyond = tokens - (config.limit - config.buffer)
    return -config.penalty * min(1.0, max(0.0, beyond / config.buffer))


def gated(value: float | None, components: Mapping[str, float | None], gates: Sequence[GateConfig]) -> float | None:
    """The first gate that is not reached decides. One whose part is missing makes the reward missing."""
    for gate in gates:
        reached = components.get(gate.part)
        if reached is None:
            return None
        if reached < gate.at_least:
            return gate.otherwise
    return value


def _calls(scores: Mapping[str, Score], weights: Mapping[str, float]) -> list[float | None] | None:
    """The weighted sum of the parts that score messages; None for a message that one of them left out."""
    given = [
        (weights[name], score.calls)
        for name, score in scores.items()
        if score.calls is not UNSET and weights[name] != 0  # what is only recorded is given to no call
    ]
    if not given:
        return None
    return [
        weighted_sum(
            {str(index): value for index, value in enumerate(values)},
            {str(index): weight for index, (weight, _) in enumerate(given)},
        )
        for values in zip(*(calls for _, calls in given), strict=True)
    ]
