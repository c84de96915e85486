"""Policies that need no model: functions of the conversation, the tools and their own seed, so they can be repeated."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.env.check.arguments import fitting, misfitting
from agentrl.messages import Message, assistant

_COMMON = ("1+1", "2*(3+4)", "ls", "SELECT 1", "print(1)", "a", "the", "0", "42", "naïve", "{}", "yes", "no")
_CALLING_TURNS = 4  # of a policy that calls tools, before it answers
_MALFORMED = ('{"a":', "[1]", "null", '"x"', "", "{}")


@dataclass(frozen=True)
class Turn:
    """What a policy sees."""

    messages: Sequence[Message]  # the whole conversation
    tools: Sequence[Mapping[str, Any]]
    index: int  # of this action, from 0


class Policy(Protocol):
    def __call__(self, turn: Turn) -> Message: ...


def silent(turn: Turn) -> Message:
    return assistant("")


@dataclass
class RandomText:
    """Words, sometimes very many, sometimes of the conversation, sometimes no content at all."""

    rng: random.Random

    def __call__(self, turn: Turn) -> Message:
        words = words_of(turn.messages)
        if turn.index % 7 == 2:
            return assistant(" ".join(self.rng.choice(words) for _ in range(4000)))
        if turn.index % 7 == 3:
            return assistant("\x00 \u202e ```\n" + self.rng.choice(words))
        if turn.index % 7 == 5:
            return assistant(None)
        return assistant(" ".join(self.rng.choice(words) for _ in range(self.rng.randint(1, 6))))


@dataclass
class ToolCaller:
    """Calls tools with arguments that fit their schema, one to three at a time, then answers."""

    rng: random.Random

    def __call__(self, turn: Turn) -> Message:
        if not turn.tools or turn.index >= _CALLING_TURNS:
            return RandomText(self.rng)(turn)
        words = words_of(turn.messages)
        count = 1 if turn.index == 0 else self.rng.randint(1, 3)
        chosen = [_function(self.rng.choice(list(turn.tools))) for _ in range(count)]
        return _calling(
            turn, [(str(tool.get("name")), fitting(tool.get("parameters") or {}, self.rng, words)) for tool in chosen]
        )


@dataclass
class WrongCaller:
    """Calls that a small model makes: no such tool, arguments that are no JSON, no object, or do not fit."""

    rng: random.Random

    def __call__(self, turn: Turn) -> Message:
        if turn.index >= 2 * _CALLING_TURNS or not turn.tools:
            return assistant(None) if turn.index % 2 else assistant("x")
        tool = _function(self.rng.choice(list(turn.tools)))
        name = str(tool.get("name"))
        if turn.index == 0:
            return _calling(turn, [("no_such_tool", {})])
        if turn.index % 2:
            wrong = [misfitting(tool.get("parameters") or {}, self.rng, words_of(turn.messages)) for _ in range(3)]
            return _calling(turn, [(name, arguments) for arguments in wrong])
        return _calling(turn, [(name, self.rng.choice(_MALFORMED))])


@dataclass
class Repeater:
    """The same action again and again: a reward that can be collected twice shows here."""

    rng: random.Random
    _action: Message | None = field(default=None)

    def __call__(self, turn: Turn) -> Message:
        if self._action is None:
            self._action = ToolCaller(self.rng)(turn)
        return Message(json.loads(json.dumps(self._action)))


@dataclass
class ReferencePolicy:
    """The environment's own solution. What it raises comes out of the call."""

    solve: Callable[[list[Message]], Message | str]

    def __call__(self, turn: Turn) -> Message:
        reply = self.solve([Message(message) for message in turn.messages])
        return assistant(reply) if isinstance(reply, str) else reply


SCRIPTED = ("silent", "text", "tools", "wrong", "repeat")


def scripted(name: str, seed: str) -> Policy:
    """A policy of `SCRIPTED`. `seed` is text: Python seeds its generator with it alike in every process."""
    rng = random.Random(f"{name} {seed}")
    made: dict[str, Policy] = {
        "silent": silent,
        "text": RandomText(rng),
        "tools": ToolCaller(rng),
        "wrong": WrongCaller(rng),
        "repeat": Repeater(rng),
    }
    return made[name]


def words_of(messages: Sequence[Message]) -> list[str]:
    """Words and numbers of the last messages that the environment wrote, with some that tools often like."""
    said = " ".join(message.text[-2000:] for message in messages[-3:] if message.role != "assistant")
    return [*_COMMON, *dict.fromkeys(re.findall(r"[\w./+*-]+", said)[:60])]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def _calling(turn: Turn, calls: Sequence[tuple[str, Mapping[str, Any] | str]]) -> Message:
    return assistant(
        None,
        tool_calls=[
            {
                "id": f"call_{turn.index}_{number}",
                "type": "function",
                "function": {
                    "name": name,
                    "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments),
                },
            }
            for number, (name, arguments) in enumerate(calls)
        ],
    )
