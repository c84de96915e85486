"""What an environment gave, checked and made plain: the one place where its answers become ours.

Every check raises EnvironmentFault, in a sentence that says what to return instead.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
import orjson
from msgspec import Struct

from agentrl.env.base import Observation
from agentrl.env.space import ObservationSpace
from agentrl.errors import EnvironmentFault, EnvironmentOutOfMemory
from agentrl.messages import Message

_OBSERVATIONS = ObservationSpace()


class Step(Struct, frozen=True):
    """What a step gave, checked."""

    observation: Observation
    reward: float | None  # finite; None is missing
    terminated: bool
    truncated: bool
    role: str | None = None  # who speaks next, where an environment has roles; None is whoever spoke
    role_rewards: dict[str, float | None] = {}  # beside `reward`, which is the speaker's


def checked_reset(name: str, result: Any) -> Observation:
    """The first messages, from what `reset` of environment `name` returned."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise fault(name, "reset", f"returned {shown(result)}; return (observation, info)")
    observation, info = result
    if not isinstance(info, dict):
        raise fault(name, "reset", f"returned an info of type {type(info).__name__}; return a dict")
    return _observation(name, "reset", observation, ended=False)


def checked_tools(name: str, tools: Any) -> list[dict[str, Any]]:
    """OpenAI's `tools`, as JSON has them."""
    try:
        found = orjson.loads(orjson.dumps(tools, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise fault(name, "tools", f"gave tools that are not JSON: {error}") from error
    if not isinstance(found, list) or not all(isinstance(tool, dict) for tool in found):
        raise fault(name, "tools", f"gave {shown(tools)}; a tool is an entry of OpenAI's `tools`, a dict")
    return found


def checked_step(name: str, result: Any) -> Step:
    """A step, from what `step` of environment `name` returned."""
    if not isinstance(result, tuple) or len(result) != 5:
        raise fault(
            name, "step", f"returned {shown(result)}; return (observation, reward, terminated, truncated, info)"
        )
    observation, reward, terminated, truncated, info = result
    for flag_name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            raise fault(name, "step", f"returned {flag_name}={shown(flag)}; return True or False")
    if not isinstance(info, dict):
        raise fault(name, "step", f"returned an info of type {type(info).__name__}; return a dict")
    checked = _observation(name, "step", observation, ended=bool(terminated or truncated))
    role = info.get("role")
    return Step(
        checked,
        _reward(name, reward),
        bool(terminated),
        bool(truncated),
        role=role if isinstance(role, str) else None,
        role_rewards=_role_rewards(name, info.get("role_rewards")),
    )


def fault(name: str, method: str, what: str) -> EnvironmentFault:
    return EnvironmentFault(f"{name}.{method} {what}")


def raised(name: str, method: str, error: BaseException) -> EnvironmentFault:
    """The fault for whatever a method raised."""
    kind = EnvironmentOutOfMemory if isinstance(error, MemoryError) else EnvironmentFault
    return kind(f"{name}.{method} raised {_told(error)}")


def shown(value: object) -> str:
    """A short repr; never raises, as the environment's own `__repr__` and Python's of a very large int may."""
    try:
        return reprlib.repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def _observation(name: str, method: str, observation: Any, *, ended: bool) -> Observation:
    wrong = _OBSERVATIONS.fault(observation)
    if wrong is not None:
        raise fault(name, method, f"returned no observation: {wrong}")
    if not observation and not ended:
        raise fault(name, method, "returned no new message and the episode goes on; return one, or end the episode")
    try:
        return [Message(message) for message in orjson.loads(orjson.dumps(observation))]
    except TypeError as error:
        raise fault(name, method, f"returned messages that are not JSON: {error}") from error


def _role_rewards(name: str, rewards: Any) -> dict[str, float | None]:
    if rewards is None:
        return {}
    if not isinstance(rewards, dict):
        raise fault(name, "step", f"returned info['role_rewards'] {shown(rewards)}; return a reward for each role")
    return {str(role): _reward(name, reward) for role, reward in rewards.items()}


def _reward(name: str, reward: Any) -> float | None:
    if reward is None:
        return None
    try:
        value = float(reward)
    except Exception as error:  # a stranger's `__float__`, an int past the floats
        raise fault(name, "step", f"returned the reward {shown(reward)}; return a number or None") from error
    if not math.isfinite(value):
        raise fault(name, "step", f"returned the reward {value}; return a finite number, or None when it is missing")
    return value


def _told(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:  # its `__str__` is the environment's code too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
