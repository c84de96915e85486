"""An environment whose tools are known at run time only: calls are answered until the policy says its last word."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from typing import Any

from agentrl.env.base import Env, StepResult
from agentrl.env.space import as_action
from agentrl.env.tool import ToolError, error_text, json_object
from agentrl.errors import EnvironmentFault
from agentrl.messages import Message
from agentrl.messages import tool as tool_message

Content = str | list[dict[str, Any]]
"""What a tool message says: text, or OpenAI's content parts."""


class ToolLoop(Env):
    """Subclasses give `reset`, which sets `schemas` and calls `begin`, and the two methods below.

    As in `agentrl.ToolEnv`, what is wrong with a call goes to the policy as "Error: ...", and only an EnvironmentFault
    ends the episode. `max_rounds` messages with calls are answered; one more truncates the episode, and is scored.
    """

    max_rounds: int = 32
    schemas: list[dict[str, Any]] = []  # noqa: RUF012  replaced at reset, never changed in place
    _rounds = 0

    @abstractmethod
    async def call(self, name: str, arguments: dict[str, Any]) -> Content:
        """The result of a tool that is among `schemas`. Raises ToolError for the policy, EnvironmentFault otherwise."""

    @abstractmethod
    async def score(self, message: Message) -> float | None:
        """The reward of the last message. None is missing."""

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self.schemas

    def begin(self) -> None:
        self._rounds = 0

    async def step(self, action: Message | str) -> StepResult:
        message = as_action(action)
        calls = message.tool_calls
        if not calls or self._rounds >= self.max_rounds:
            return [], await self.score(message), not calls, bool(calls), {}
        self._rounds += 1
        # Every call ends before a fault is raised, so none is left running behind the environment's back.
        outcomes = await asyncio.gather(*map(self._answer, calls), return_exceptions=True)
        answers = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            answers.append(outcome)
        return answers, 0.0, False, False, {}

    async def _answer(self, call: dict[str, Any]) -> Message:
        function = call.get("function") or {}
        name = str(function.get("name"))
        content: Content
        try:
            if name not in [schema["function"]["name"] for schema in self.schemas]:
                raise ToolError(f"unknown tool {name!r}")
            content = await self.call(name, json_object(function.get("arguments")))
        except EnvironmentFault:
            raise
        except Exception as error:
            content = error_text(error)
        return tool_message(content, tool_call_id=str(call.get("id", "")))


def openai_tool(name: str, description: str | None, parameters: dict[str, Any] | None) -> dict[str, Any]:
    """A tool as an entry of OpenAI's `tools`, from a JSON schema of its arguments."""
    shown = {"type": "object", "properties": {}, **(parameters or {})}
    return {"type": "function", "function": {"name": name, "description": description or "", "parameters": shown}}
