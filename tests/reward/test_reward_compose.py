"""From parts to a reward, by hand: what is missing stays missing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.reward.compose import compose, overlong_penalty, weighted_sum
from agentrl.reward.config import GateConfig, OverlongConfig, RewardConfig, ServiceConfig
from agentrl.reward.protocol import Score


def config(*parts: str, weights: dict[str, float] | None = None, **settings: Any) -> RewardConfig:
    """Services of these names, with weight 1 unless told otherwise."""
    weights = weights or {}
    services = tuple(ServiceConfig(name=name, url="http://h", weight=weights.get(name, 1.0)) for name in parts)
    return RewardConfig(services=services, env_weight=weights.get("env", 1.0), **settings)


def test_rewards_are_weighted_and_their_parts_kept() -> None:
    """Case 81's arithmetic: weights .7 and .3, rewards 1 and 0."""
    judged = Score(id="a", reward=0.0, components={"style": 0.5})
    reward = compose(1.0, {"judge": judged}, config("judge", weights={"env": 0.7, "judge": 0.3}))
    assert reward.value == pytest.approx(0.7)
    assert reward.components == {"env": 1.0, "judge": 0.0, "judge.style": 0.5}
    assert reward.calls is None


@pytest.mark.parametrize(
    ("env", "judge", "weights", "value"),
    [
        (None, 1.0, {"env": 1.0, "judge": 1.0}, None),
        (1.0, None, {"env": 1.0, "judge": 1.0}, None),
        (None, 1.0, {"env": 0.0, "judge": 1.0}, 1.0),
        (1.0, None, {"env": 1.0, "judge": 0.0}, 1.0),
    ],
)
def test_a_part_that_counts_and_is_missing_makes_the_reward_missing(
    env: float | None, judge: float | None, weights: dict[str, float], value: float | None
) -> None:
    assert compose(env, {"judge": Score(id="a", reward=judge)}, config("judge", weights=weights)).value == value


@pytest.mark.parametrize(("env", "judge", "weight"), [(1e308, 1e308, 1.0), (0.0, 1e308, 10.0)])
def test_a_sum_past_the_floats_is_missing(env: float, judge: float, weight: float) -> None:
    settings = config("judge", weights={"judge": weight})
    assert compose(env, {"judge": Score(id="a", reward=judge)}, settings).value is None


whole = st.integers(-100, 100)  # of which sums are exact


@given(st.dictionaries(st.sampled_from("abcd"), st.tuples(whole | st.none(), whole)))
def test_the_reward_is_the_weighted_sum_or_missing(parts: dict[str, tuple[int | None, int]]) -> None:
    weights = {name: float(weight) for name, (_, weight) in parts.items()}
    found = weighted_sum({name: value for name, (value, _) in parts.items()}, weights)
    counting = [(value, weight) for value, weight in parts.values() if weight != 0]
    if any(value is None for value, _ in counting):
        assert found is None
    else:
        assert found == sum(value * weight for value, weight in counting if value is not None)


GATE = (GateConfig(part="format", at_least=1.0, otherwise=-1.0),)


@pytest.mark.parametrize(("format_", "value"), [(1.0, 0.5), (0.0, -1.0), (None, None)])
def test_a_gate_decides_when_its_condition_fails_and_is_missing_when_it_is_unknown(
    format_: float | None, value: float | None
) -> None:
    settings = config("format", weights={"format": 0.0}, gates=GATE)
    assert compose(0.5, {"format": Score(id="a", reward=format_)}, settings).value == value


def test_a_gate_may_look_at_a_parts_component() -> None:
    settings = config("judge", gates=(GateConfig(part="judge.safe", at_least=1.0),))
    unsafe = Score(id="a", reward=1.0, components={"safe": 0.0})
    assert compose(1.0, {"judge": unsafe}, settings).value == 0.0


@pytest.mark.parametrize(("env", "value"), [(5.0, 1.0), (-5.0, -1.0), (0.5, 0.5)])
def test_the_reward_is_clipped_last(env: float, value: float) -> None:
    assert compose(env, {}, config(clip=(-1.0, 1.0))).value == value


OVERLONG = OverlongConfig(limit=100, buffer=20, penalty=0.5)


@pytest.mark.parametrize(
    ("tokens", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.125), (90, -0.25), (100, -0.5), (1000, -0.5)]
)
def test_long_episodes_are_punished_as_in_dapo(tokens: int, penalty: float) -> None:
    """Equation 13 with L_max 100 and L_cache 20, times 0.5."""
    assert overlong_penalty(tokens, OVERLONG) == pytest.approx(penalty)


def test_length_counts_the_sampled_tokens_and_is_kept_as_a_component() -> None:
    settings = config(token_cost=0.001, overlong=OVERLONG)
    reward = compose(1.0, {}, settings, tokens=90)
    assert reward.value == pytest.approx(1.0 - 0.09 - 0.25)
    assert reward.components["length"] == pytest.approx(-0.34)


def test_a_length_that_is_unknown_makes_the_reward_missing() -> None:
    assert compose(1.0, {}, config(token_cost=0.001)).value is None


def test_rewards_of_messages_are_weighted_over_the_parts_that_give_them() -> None:
    scores = {
        "style": Score(id="a", reward=1.0, calls=[1.0, 0.5]),
        "steps": Score(id="a", reward=1.0, calls=[2.0, None]),
        "other": Score(id="a", reward=1.0),
    }
    settings = config("style", "steps", "other", weights={"style": 2.0, "steps": 1.0})
    assert compose(0.0, scores, settings).calls == [4.0, None]


def test_a_part_that_is_only_recorded_gives_no_message_a_reward() -> None:
    scores = {"style": Score(id="a", reward=1.0, calls=[1.0, 0.5])}
    assert compose(0.0, scores, config("style", weights={"style": 0.0})).calls is None


def test_a_gate_that_is_not_reached_decides_also_without_the_rest() -> None:
    scores = {"format": Score(id="a", reward=0.0), "judge": Score(id="a", error="down")}
    assert compose(0.5, scores, config("format", "judge", gates=GATE)).value == -1.0
