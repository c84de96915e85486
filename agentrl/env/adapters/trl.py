"""Environment classes written for TRL's `environment_factory`: public methods are tools, `get_reward` is the reward."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.env.adapters.imports import named, package, placed_names
from agentrl.env.adapters.tool_loop import Content, ToolLoop
from agentrl.env.base import Observation, ResetResult
from agentrl.env.space import message_fault
from agentrl.env.tool import ToolError
from agentrl.errors import ConfigError
from agentrl.messages import Message, system, user

_NO_TOOLS = ("reset", "get_reward")


class TRL(ToolLoop):
    """`environment` is what TRL is given as `environment_factory`, or its name; `kwargs` go to it.

    A task's options are a row of the data set: `prompt`, messages or text, and whatever `reset` takes. As in TRL, what
    `reset` returns is added to the last message, and every public method but `reset` and `get_reward` is a tool, with
    the schema that transformers makes of its type hints and docstring. `seed` is passed to a `reset` that names it.

    `rewards` are TRL's reward functions, or their names: each is called with the conversation as TRL does, and what
    they give is added to `get_reward`. Those that give None are left out; without any the reward is missing. A method
    `_close` is called in the end.
    """

    def __init__(
        self,
        environment: Callable[..., Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        prompt: str | None = None,
        instructions: str | None = None,
        rewards: Sequence[Callable[..., Any] | str] = (),
        max_rounds: int = 32,
    ) -> None:
        self._schema_of = package("transformers.utils", extra="trl").get_json_schema
        self._environment = named(environment)(**(kwargs or {}))
        if not callable(getattr(self._environment, "reset", None)):
            raise ConfigError(f"{environment!r} made a {type(self._environment).__name__} without a reset method")
        self._prompt = prompt
        self._instructions = instructions
        self._rewards = [named(reward) for reward in rewards]
        self.max_rounds = max_rounds
        self._methods: dict[str, Callable[..., Any]] = {}
        self._row: dict[str, Any] = {}
        self._said: list[Message] = []  # prompt and completion, for reward functions
        self._prompt_length = 0

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return placed_names(options, "environment", "rewards")

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self.begin()
        self._row = {name: value for name, value in (options or {}).items() if name != "split"}
        taken = dict(self._row)
        if seed is not None and "seed" in inspect.signature(self._environment.reset).parameters:
            taken.setdefault("seed", seed)
        told = await _maybe_awaited(self._environment.reset(**taken))
        opening = self._opening(told)
        self._learn_tools()
        self._said, self._prompt_length = list(opening), len(opening)
        return opening, {}

    async def step(self, action: Message | str) -> Any:
        self._said.append(Message(action) if isinstance(action, dict) else Message(role="assistant", content=action))
        result = await super().step(action)
        self._said += result[0]
        return result

    async def call(self, name: str, arguments: dict[str, Any]) -> Content:
        try:
            result = await _maybe_awaited(self._methods[name](**arguments))
        except TypeError as error:
            raise ToolError(str(error)) from error
        return result if isinstance(result, list) else str(result)

    async def score(self, message: Message) -> float | None:
        given: list[Any] = []
        if hasattr(self._environment, "get_reward"):
            given.append(await _maybe_awaited(self._environment.get_reward()))
        for reward in self._rewards:
            [one] = await _maybe_awaited(reward(**self._columns()))
            given.append(one)
        known = [float(reward) for reward in given if reward is not None]
        return sum(known) if known else None

    async def close(self) -> None:
        closing = getattr(self._environment, "_close", None)
        if callable(closing):
            await _maybe_awaited(closing())

    def _opening(self, told: Any) -> Observation:
        """The prompt, with what `reset` returned at its end."""
        prompt = self._row.get("prompt", self._prompt)
        messages = [user(prompt or "")] if prompt is None or isinstance(prompt, str) else [*prompt]
        wrong = next((fault for message in messages if (fault := message_fault(message)) is not None), None)
        if not messages or wrong is not None:
            raise ConfigError(f"the prompt of a TRL task is text or a list of messages: {wrong or 'it is empty'}")
        opening = [Message(message) for message in messages]
        if told is not None:
            opening[-1] = Message({**opening[-1], "content": _joined(opening[-1]["content"], told)})
        return [system(self._instructions), *opening] if self._instructions else opening

    def _learn_tools(self) -> None:
        """Listed on the class, as TRL does: an instance's properties would be evaluated."""
        self._methods = {
            name: getattr(self._environment, name)
            for name, _ in inspect.getmembers(type(self._environment), predicate=inspect.isfunction)
            if name not in _NO_TOOLS and not name.startswith("_")
        }
        try:
            self.schemas = [self._schema_of(method) for method in self._methods.values()]
        except Exception as error:  # transformers' own, for a missing type hint or description
            raise ConfigError(f"a tool of {type(self._environment).__name__} cannot be described: {error}") from error

    def _columns(self) -> dict[str, Any]:
        """What a reward function is called with, for a batch of one."""
        rows = {name: [value] for name, value in self._row.items() if name != "prompt"}
        conversation = {
            "prompts": [self._said[: self._prompt_length]],
            "completions": [self._said[self._prompt_length :]],
            "completion_ids": [[]],
        }
        return {**rows, **conversation, "environments": [self._environment], "trainer_state": None}


def _joined(content: Any, told: Any) -> Any:
    """Text and text, or parts and parts."""
    if isinstance(content, str) and isinstance(told, str):
        return content + told
    return [*_parts(content), *_parts(told)]


def _parts(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


async def _maybe_awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
