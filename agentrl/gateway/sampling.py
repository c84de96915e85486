"""Which distribution a call is sampled from: the session's pins over the request's fields over the neutral defaults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from agentrl.gateway.refusal import Refusal, invalid
from agentrl.types import MIN_TRAIN_TEMPERATURE, Constraint, Mode, Sampling

NEUTRAL = Sampling()

RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),  # what vLLM and the APIs take
    "top_p": (1e-6, 1),
    "top_k": (0, 1 << 31),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 100),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, 1 << 31),
    "seed": (-(1 << 63), (1 << 63) - 1),
    "top_logprobs": (0, 1 << 31),
}

MAX_TOKEN_ID = (1 << 31) - 1


def effective(requested: Mapping[str, Any], pins: Mapping[str, Any], mode: Mode) -> Sampling:
    """The sampling of one call. None in `requested` is a field left out. A pinned `max_tokens` is the most that a
    request may ask for.

    Raises Refusal naming the field: out of range, or one that a train session may not set.
    """
    values = {name: value for name, value in requested.items() if value is not None and name not in pins}
    asked, most = requested.get("max_tokens"), pins.get("max_tokens")
    if isinstance(asked, int) and most is not None:
        return _checked(values | {**pins, "max_tokens": min(asked, most)}, mode, prefix="")
    return _checked(values | dict(pins), mode, prefix="")


def checked_pins(pins: Mapping[str, Any], mode: Mode) -> dict[str, Any]:
    """A session's pins, as they will be applied. Raises Refusal naming the field, unknown ones included."""
    unknown = sorted(set(pins) - set(Sampling.__struct_fields__))
    if unknown:
        known = ", ".join(Sampling.__struct_fields__)
        raise invalid(f"sampling.{unknown[0]}", f"sampling.{unknown[0]} is unknown; known: {known}")
    values = {name: value for name, value in pins.items() if value is not None}
    sampling = _checked(values, mode, prefix="sampling.")
    return {name: getattr(sampling, name) for name in values}


def _checked(values: dict[str, Any], mode: Mode, *, prefix: str) -> Sampling:
    if values.get("top_k") == -1:
        values["top_k"] = 0  # the engines' other spelling of off
    try:
        sampling = msgspec.convert(values, Sampling)
    except msgspec.ValidationError as error:
        field = str(error).partition("`$.")[2].partition("`")[0].partition("[")[0]
        raise invalid(f"{prefix}{field}" if field else None, f"sampling: {error}") from error
    for name, (low, high) in RANGES.items():
        value = getattr(sampling, name)
        if value is not None and not (math.isfinite(value) and low <= value <= high):
            raise invalid(prefix + name, f"{prefix}{name} is {value}; it must lie between {low:g} and {high:g}")
    if not all(0 <= token_id <= MAX_TOKEN_ID for token_id in sampling.stop_token_ids):
        raise invalid(f"{prefix}stop_token_ids", f"{prefix}stop_token_ids are between 0 and {MAX_TOKEN_ID}")
    if sampling.constraint is not None:
        _check_can_be_sent(sampling.constraint, prefix)
    if "" in sampling.stop:
        raise invalid(f"{prefix}stop", f"{prefix}stop holds an empty string, which no engine takes; leave it out")
    if mode == "train":
        _refuse_reshaping(sampling, prefix)
    return sampling


def _check_can_be_sent(constraint: Constraint, prefix: str) -> None:
    try:
        orjson.dumps(constraint.value)
    except TypeError as error:  # half a character, a number beyond 64 bits, nested too deep
        raise invalid(
            f"{prefix}constraint", f"the grammar of the answer cannot be sent to an engine: {error}"
        ) from error


def _refuse_reshaping(sampling: Sampling, prefix: str) -> None:
    """Training on it would break invariant 3."""
    for name in sampling.reshaping:
        raise _untrainable(prefix + name, getattr(sampling, name), f"leave it out or send {getattr(NEUTRAL, name):g}")
    if sampling.temperature < MIN_TRAIN_TEMPERATURE:
        fix = f"send a temperature of at least {MIN_TRAIN_TEMPERATURE:g}"
        raise _untrainable(prefix + "temperature", f"{sampling.temperature:g}", fix)


def _untrainable(field: str, value: object, fix: str) -> Refusal:
    return invalid(
        field,
        f"{field}={value} reshapes the distribution in a way that training does not model; {fix}, "
        "or open the session with mode 'eval'",
    )
