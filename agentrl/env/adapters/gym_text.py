"""Any gymnasium environment, played in words: observations are told as messages, and replies are read as actions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Discrete, Space, Text

from agentrl.env.adapters.imports import named, placed_names
from agentrl.env.base import Env, Observation, ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl.errors import ConfigError
from agentrl.messages import Message, system, user

Describe = Callable[[Any, gymnasium.Env[Any, Any]], str]
"""(observation, environment) -> what the policy reads of it."""

Parse = Callable[[str, gymnasium.Env[Any, Any]], Any]
"""(reply, environment) -> action. Raises ValueError, whose text the policy reads, for a reply that is none."""

_MAX_LISTED = 30  # actions that are told one by one
_HIGHLIGHTED = re.compile(r"\x1b\[[0-9;]+m(.*?)\x1b\[0m")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class GymText(Env):
    """`id` is a gymnasium id, `kwargs` go to `gymnasium.make`.

    `describe` and `parse` are functions, or the names of functions. Without `describe` the policy reads the "ansi"
    rendering where there is one (a highlighted place is put in brackets), else the observation itself. Without `parse`
    the last action that a reply names is taken: a number or one of `actions`, the names of a Discrete space's actions;
    in a Text space the reply itself; in any other space JSON.

    A reply that is no action is told so and costs no step; one more than `max_invalid` of them in a row truncates
    the episode. `instructions` come first, as a system message.
    """

    def __init__(
        self,
        id: str,  # noqa: A002  gymnasium's word for it
        *,
        kwargs: dict[str, Any] | None = None,
        instructions: str | None = None,
        actions: Sequence[str] = (),
        describe: Describe | str | None = None,
        parse: Parse | str | None = None,
        max_invalid: int = 3,
    ) -> None:
        self.env = _make(id, dict(kwargs or {}))
        self.env_actions = _named_actions(self.env.action_space, actions)
        self._instructions = instructions
        self._describe: Describe = describe_default if describe is None else named(describe)
        self._parse: Parse = self._parse_default if parse is None else named(parse)
        self._max_invalid = max_invalid
        self._invalid = 0

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return placed_names(options, "describe", "parse")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self._invalid = 0
        own = {name: value for name, value in (options or {}).items() if name != "split"}
        seeded = None if seed is None else seed % 2**32  # what old environments take
        observation, info = self.env.reset(seed=seeded, options=own or None)
        opening = self._told(observation, how=self._how())
        return [system(self._instructions), *opening] if self._instructions else opening, _plain(info)

    def step(self, action: Message | str) -> StepResult:
        try:
            chosen = self._parse(as_action(action).text, self.env)
        except ValueError as error:
            self._invalid += 1
            told = [user(f"Error: {error}")]
            return told, 0.0, False, self._invalid > self._max_invalid, {"invalid": True}
        self._invalid = 0
        observation, reward, terminated, truncated, info = self.env.step(chosen)
        return self._told(observation), float(reward), bool(terminated), bool(truncated), _plain(info)

    def close(self) -> None:
        self.env.close()

    def _told(self, observation: Any, how: str = "") -> Observation:
        return [user("\n".join(part for part in (self._describe(observation, self.env), how) if part))]

    def _how(self) -> str:
        if self._parse != self._parse_default:
            return ""
        if self.env_actions:
            return f"Reply with one action: {_listed(self.env_actions)}."
        if isinstance(self.env.action_space, Text):
            return ""
        return f"Reply with an action as JSON, of {self.env.action_space}."

    def _parse_default(self, text: str, env: gymnasium.Env[Any, Any]) -> Any:
        if self.env_actions:
            return parse_named(text, self.env_actions)
        return (
            parse_text(text, env.action_space)
            if isinstance(env.action_space, Text)
            else parse_json(text, env.action_space)
        )


def describe_default(observation: Any, env: gymnasium.Env[Any, Any]) -> str:
    """The rendering of an environment made with render_mode "ansi", else the observation, as JSON if it is no text."""
    if env.render_mode == "ansi":
        return _ESCAPE.sub("", _HIGHLIGHTED.sub(r"[\1]", str(env.render()))).strip()
    return observation if isinstance(observation, str) else json.dumps(_plain(observation))


def parse_named(text: str, actions: dict[str, int]) -> int:
    """The action that is named last in `text`, whatever the case. Raises ValueError when none is."""
    names = sorted(map(re.escape, actions), key=len, reverse=True)
    found = re.findall(rf"(?<![\w-])(?:{'|'.join(names)})(?!\w)", text, re.IGNORECASE)
    if not found:
        raise ValueError(f"there is no action in the reply; it is one of {_listed(actions)}")
    lowered = {name.lower(): action for name, action in actions.items()}
    return lowered[found[-1].lower()]


def parse_text(text: str, space: Space[Any]) -> str:
    stripped = text.strip()
    if stripped not in space:
        raise ValueError(f"the reply is no action of {space}")
    return stripped


def parse_json(text: str, space: Space[Any]) -> Any:
    """The last line of `text` as an element of `space`; lists are arrays of its type. Raises ValueError."""
    lines = text.strip().splitlines() or [""]
    try:
        value = json.loads(lines[-1])
        action = np.asarray(value, dtype=space.dtype) if space.shape and space.dtype is not None else value
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"the last line of the reply has to be JSON, an action of {space} ({error})") from None
    if action not in space:
        raise ValueError(f"{lines[-1][:100]} is no action of {space}")
    return action


def _make(env_id: str, kwargs: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    try:
        spec = gymnasium.spec(env_id)
        if "render_mode" not in kwargs and _renders_text(spec):
            kwargs["render_mode"] = "ansi"
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(f"gymnasium cannot make {env_id!r}: {error}") from error


def _renders_text(spec: Any) -> bool:
    entry_point = spec.entry_point
    creator = gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    return "ansi" in (getattr(creator, "metadata", None) or {}).get("render_modes", [])


def _named_actions(space: Space[Any], names: Sequence[str]) -> dict[str, int]:
    """Names of the actions of a Discrete space: its numbers, and the given names."""
    if not isinstance(space, Discrete):
        if names:
            raise ConfigError(f"actions = {list(names)} name the actions of a Discrete space, and this is {space}")
        return {}
    start, count = int(space.start), int(space.n)
    if names and len(names) != count:
        raise ConfigError(f"actions = {list(names)} are {len(names)} names for {count} actions; give each one")
    numbered = {str(start + index): start + index for index in range(count)}
    return numbered | {name: start + index for index, name in enumerate(names)}


def _listed(actions: dict[str, int]) -> str:
    """Each action once, by its name where it has one; of very many the first and the last."""
    names = list({action: name for name, action in actions.items()}.values())
    return ", ".join(names) if len(names) <= _MAX_LISTED else f"{names[0]}, {names[1]}, … {names[-1]}"


def _plain(value: Any) -> Any:
    """What JSON carries of it; what it does not, as text."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value if isinstance(value, str | int | float | bool | None) else str(value)
