"""Pins over request over neutral, and what a train session may not ask for."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.gateway.refusal import Refusal
from agentrl.gateway.sampling import checked_pins, effective
from agentrl.types import Sampling


def test_without_fields_the_distribution_is_neutral() -> None:
    assert effective({"temperature": None, "stop": None}, {}, "train") == Sampling()


def test_a_pinned_field_wins_over_the_requests() -> None:
    pins = checked_pins({"temperature": 0.5, "max_tokens": 7}, "train")
    sampling = effective({"temperature": 0, "max_tokens": 100, "stop": ["x"]}, pins, "train")
    assert (sampling.temperature, sampling.max_tokens, sampling.stop) == (0.5, 7, ("x",))


def test_a_request_may_ask_for_fewer_tokens_than_are_pinned() -> None:
    pins = checked_pins({"max_tokens": 7}, "train")
    asked = (3, 7, 100, None)
    assert [effective({"max_tokens": n}, pins, "train").max_tokens for n in asked] == [3, 7, 7, 7]
    with pytest.raises(Refusal):
        effective({"max_tokens": 0}, pins, "train")


RESHAPING: list[tuple[str, Any]] = [
    ("top_p", 0.9),
    ("top_k", 5),
    ("min_p", 0.1),
    ("repetition_penalty", 1.3),
    ("presence_penalty", 0.5),
    ("frequency_penalty", -0.5),
    ("temperature", 0),
    ("temperature", 0.005),  # vLLM would sample at 0.01
]


@pytest.mark.parametrize(("field", "value"), RESHAPING)
def test_a_train_session_refuses_what_training_does_not_model_and_an_eval_session_takes_it(
    field: str, value: Any
) -> None:
    with pytest.raises(Refusal) as refused:
        effective({field: value}, {}, "train")
    assert refused.value.param == field
    assert getattr(effective({field: value}, {}, "eval"), field) == value


@pytest.mark.parametrize(("field", "value"), RESHAPING)
def test_a_train_session_cannot_be_opened_with_such_a_pin(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as refused:
        checked_pins({field: value}, "train")
    assert refused.value.param == f"sampling.{field}"


@pytest.mark.parametrize(("field", "neutral"), [("top_p", 1), ("top_k", -1), ("top_k", 0), ("presence_penalty", 0)])
def test_neutral_values_are_welcome(field: str, neutral: Any) -> None:
    assert effective({field: neutral}, {}, "train") == Sampling()


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("temperature", "hot"), ("top_p", 0), ("max_tokens", 0), ("max_tokens", -1), ("min_p", 2)],
)
def test_values_out_of_range_are_named(field: str, value: Any) -> None:
    with pytest.raises(Refusal) as refused:
        effective({field: value}, {}, "eval")
    assert (refused.value.status, refused.value.param) == (400, field)


def test_an_unknown_pin_is_named() -> None:
    with pytest.raises(Refusal) as refused:
        checked_pins({"temprature": 1}, "train")
    assert refused.value.param == "sampling.temprature"
