"""Reads what `reset`, `step` and `tools` returned into a record, with every breach of the contract."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
import orjson

from agentrl.env.check.records import Breach, CallRecord
from agentrl.env.space import ObservationSpace

_OBSERVATIONS = ObservationSpace()


def read_reset(record: CallRecord, result: Any) -> list[Any]:
    """The observation as it was returned, [] when it is none."""
    if not isinstance(result, tuple) or len(result) != 2:
        record.breaches.append(Breach("result-shape", f"reset returned {_shown(result)}, not (observation, info)"))
        return []
    observation, info = result
    _read_info(record, info)
    return _read_observation(record, observation, ended=False)


def read_step(record: CallRecord, result: Any) -> list[Any]:
    """As `read_reset`."""
    if not isinstance(result, tuple) or len(result) != 5:
        told = f"step returned {_shown(result)}, not (observation, reward, terminated, truncated, info)"
        record.breaches.append(Breach("result-shape", told))
        return []
    observation, reward, terminated, truncated, info = result
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            told = f"step returned {name}={_shown(flag)}, not True or False"
            record.breaches.append(Breach("result-shape", told))
    record.terminated, record.truncated = terminated is True or terminated == 1, truncated is True or truncated == 1
    _read_reward(record, reward)
    _read_info(record, info)
    return _read_observation(record, observation, ended=record.terminated or record.truncated)


def read_tools(record: CallRecord, tools: Any) -> None:
    try:
        found = orjson.loads(orjson.dumps(list(tools), option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        record.breaches.append(Breach("not-json", f"the tools are not JSON: {error}"))
        return
    if not all(isinstance(tool, dict) for tool in found):
        record.breaches.append(Breach("tool-schema", f"tools are {_shown(tools)}; each is a dict, OpenAI's form"))
        return
    record.tools = found


def _read_observation(record: CallRecord, observation: Any, *, ended: bool) -> list[Any]:
    fault = _OBSERVATIONS.fault(observation)
    if fault is not None:
        record.breaches.append(Breach("message-form", f"{record.method}: {fault}"))
        return []
    if not observation and not ended:
        told = f"{record.method} returned no new message, and the episode goes on"
        record.breaches.append(Breach("observation-empty", told))
    try:
        record.observation = orjson.loads(orjson.dumps(observation))
    except TypeError as error:
        record.breaches.append(Breach("not-json", f"{record.method} returned messages that are not JSON: {error}"))
    return list(observation)


def _read_reward(record: CallRecord, reward: Any) -> None:
    record.reward_text = _shown(reward)
    if reward is None:
        record.reward_kind = "missing"
        return
    try:
        value = float(reward)
    except Exception:  # a stranger's `__float__`, an int past the floats
        record.reward_kind = "not_a_number"
        return
    record.reward_kind = "number" if math.isfinite(value) else "not_finite"
    record.reward = value if math.isfinite(value) else None


def _read_info(record: CallRecord, info: Any) -> None:
    if not isinstance(info, dict):
        record.breaches.append(
            Breach("result-shape", f"{record.method} returned an info of type {type(info).__name__}, not a dict")
        )
        return
    try:
        orjson.dumps(info, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        record.breaches.append(Breach("info-not-json", f"{record.method} returned an info that is not JSON: {error}"))


def _shown(value: object) -> str:
    """A short repr; never raises, as the environment's own `__repr__` may."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"
