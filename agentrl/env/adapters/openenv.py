"""Environments behind an OpenEnv server: their observations as messages, the policy's replies as their actions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentrl.env.adapters.imports import named, placed_names
from agentrl.env.adapters.openenv_client import Answer, InvalidAction, OpenEnvSession
from agentrl.env.adapters.tool_loop import openai_tool
from agentrl.env.base import Env, Observation, ResetResult, StepResult
from agentrl.env.space import as_action, message_fault
from agentrl.env.tool import ToolError, json_object
from agentrl.errors import ConfigError
from agentrl.messages import Message, system, user
from agentrl.messages import tool as tool_message

ACT = "act"
"""The tool that stands for an action with several fields."""

Described = Callable[[dict[str, Any]], str]
Parsed = Callable[[str], dict[str, Any]]


class OpenEnv(Env):
    """`url` is the server's, http:// or ws://. Each episode is one session at it.

    How the policy acts follows from the action's schema, which the server publishes:

    * one text field (or `action_field` names one): the reply is that field;
    * `parse` names a function from the reply to the action; what its ValueError says goes to the policy;
    * tools, where it is one of OpenEnv's MCP environments: they are offered, and a reply without calls is the last;
    * an environment of agentrl that is served (`agentrl env serve`): messages and tools as it gives them;
    * anything else: a tool `act` with the action's fields.

    An observation is told as the text of its only text field, or as JSON; `describe` names a function that words it.
    `reset` and a task's options are what the server's `reset` is given, with the seed. An action that is not of the
    schema is told to the policy and costs no step; one more than `max_invalid` in a row truncates the episode. So is
    what the environment raises, with `errors_to_policy`; otherwise that, like a lost server, fails the episode.

    A step without a reward counts 0, but an episode that never had one has none.
    """

    def __init__(
        self,
        url: str,
        *,
        prompt: str | None = None,
        instructions: str | None = None,
        action_field: str | None = None,
        parse: Parsed | str | None = None,
        describe: Described | str | None = None,
        reset: dict[str, Any] | None = None,
        header_env: dict[str, str] | None = None,
        errors_to_policy: bool = False,
        timeout_s: float = 60.0,
        max_invalid: int = 3,
    ) -> None:
        missing = [variable for variable in (header_env or {}).values() if variable not in os.environ]
        if missing:
            raise ConfigError(f"header_env of {url} names {missing}, which the environment does not have; set them")
        self._session = OpenEnvSession(
            url, timeout_s=timeout_s, header_env=header_env or {}, errors_to_policy=errors_to_policy
        )
        self._prompt = prompt
        self._instructions = instructions
        self._field = action_field
        self._parse: Parsed | None = None if parse is None else named(parse)
        self._describe: Described = describe_default if describe is None else named(describe)
        self._reset = reset or {}
        self._max_invalid = max_invalid
        self._how = ""  # how the policy acts: text, act, mcp or chat
        self._tools: list[dict[str, Any]] = []
        self._invalid = 0
        self._rewarded = False

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return placed_names(options, "parse", "describe")

    @property
    def tools(self) -> list[dict[str, Any]]:
        return self._tools

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self._invalid, self._rewarded = 0, False
        own = dict(options or {})
        if "index" not in own:  # OpenEnv's tasks are named by split and index; elsewhere the split is ours alone
            own.pop("split", None)
        schema = {} if self._parse or self._field else await self._session.schema()
        data = {"seed": seed, **self._reset, **own}
        answer = await self._session.reset({name: value for name, value in data.items() if value is not None})
        await self._learn_to_act(schema, answer)
        told = self._told(answer)
        if self._prompt:
            bare = told[0].text in ("", "{}")
            told = [user(self._prompt if bare else f"{self._prompt}\n{told[0].text}"), *told[1:]]
        return [system(self._instructions), *told] if self._instructions else told, {}

    async def step(self, action: Message | str) -> StepResult:
        message = as_action(action)
        if self._how in ("act", "mcp"):
            return await self._step_calls(message)
        try:
            answer = await self._session.step(self._action(message))
        except (InvalidAction, ValueError) as error:
            return self._refused([user(f"Error: {error}")])
        return self._outcome(answer, [] if answer.done and self._how == "text" else self._told(answer))

    async def close(self) -> None:
        await self._session.close()

    async def _learn_to_act(self, schema: Mapping[str, Any], first: Answer) -> None:
        fields = {name: field for name, field in schema.get("properties", {}).items() if name != "metadata"}
        texts = [name for name, field in fields.items() if field.get("type") == "string"]
        self._tools = []
        if self._parse or self._field:
            self._how = "text"
        elif {"content", "tool_calls"} <= fields.keys():
            self._how, self._tools = "chat", list(first.observation.get("tools") or [])
        elif {"tool_name", "arguments"} <= fields.keys() or not fields:
            self._how, self._tools = "mcp", await self._mcp_tools()
        elif len(fields) == len(texts) == 1:
            self._how, self._field = "text", texts[0]
        else:
            own = {key: value for key, value in schema.items() if key in ("type", "required", "$defs")}
            self._how = "act"
            self._tools = [openai_tool(ACT, str(schema.get("description", "")), {**own, "properties": fields})]

    async def _mcp_tools(self) -> list[dict[str, Any]]:
        try:
            listed = (await self._session.step({"type": "list_tools"})).observation.get("tools") or []
        except InvalidAction as error:
            raise ConfigError(f"it is not known how to act on this OpenEnv server; give `parse` ({error})") from None
        return [openai_tool(tool["name"], tool.get("description"), tool.get("input_schema")) for tool in listed]

    def _action(self, message: Message) -> dict[str, Any]:
        if self._how == "chat":
            return {"content": message.get("content"), "tool_calls": message.tool_calls}
        if self._parse is not None:
            return self._parse(message.text)
        assert self._field is not None
        return {self._field: message.text}

    async def _step_calls(self, message: Message) -> StepResult:
        """One step of the server for each call, in order, until it is done."""
        if not message.tool_calls:
            if self._how == "mcp":
                return [], self._reward(None, last=True), True, False, {}
            return self._refused([user(f"Error: act by calling the tool {ACT}")])
        told: Observation = []
        rewards: list[float | None] = []
        for call in message.tool_calls:
            call_id, function = str(call.get("id", "")), call.get("function") or {}
            try:
                answer = await self._session.step(self._called(str(function.get("name")), function.get("arguments")))
            except (InvalidAction, ToolError) as error:
                told.append(tool_message(f"Error: {error}", tool_call_id=call_id))
                continue
            told.append(tool_message(self._tool_text(answer), tool_call_id=call_id))
            rewards.append(self._reward(answer.reward, last=answer.done))
            if answer.done:
                break
        if not rewards:
            return self._refused(told)
        self._invalid = 0
        known = [reward for reward in rewards if reward is not None]
        return told, sum(known) if len(known) == len(rewards) else None, answer.done, False, {}

    def _called(self, name: str, arguments: Any) -> dict[str, Any]:
        if name not in [tool["function"]["name"] for tool in self._tools]:
            raise ToolError(f"unknown tool {name!r}")
        given = json_object(arguments)
        return given if self._how == "act" else {"type": "call_tool", "tool_name": name, "arguments": given}

    def _tool_text(self, answer: Answer) -> str:
        if self._how == "act":
            return self._describe(answer.observation)
        failed = answer.observation.get("error")
        return f"Error: {failed.get('message')}" if failed else result_text(answer.observation.get("result"))

    def _refused(self, told: Observation) -> StepResult:
        self._invalid += 1
        return told, 0.0, False, self._invalid > self._max_invalid, {"invalid": True}

    def _outcome(self, answer: Answer, told: Observation) -> StepResult:
        self._invalid = 0
        truncated = bool((answer.observation.get("metadata") or {}).get("truncated")) and self._how == "chat"
        reward = self._reward(answer.reward, last=answer.done)
        return told, reward, answer.done and not truncated, answer.done and truncated, {}

    def _reward(self, reward: float | None, *, last: bool) -> float | None:
        if self._how == "chat":
            return reward  # None is agentrl's own missing
        self._rewarded = self._rewarded or reward is not None
        if reward is None and (self._rewarded or not last):
            return 0.0
        return reward

    def _told(self, answer: Answer) -> Observation:
        messages = answer.observation.get("messages")
        if self._how == "chat" and isinstance(messages, list) and not any(map(message_fault, messages)):
            return [Message(message) for message in messages]
        return [user(self._describe(answer.observation))]


def describe_default(observation: dict[str, Any]) -> str:
    """The only text of an observation, else its JSON. What is None, and `metadata`, is left out."""
    shown = {name: value for name, value in observation.items() if name != "metadata" and value is not None}
    if len(shown) == 1 and isinstance(only := next(iter(shown.values())), str):
        return only
    return orjson.dumps(shown).decode()


def result_text(result: Any) -> str:
    """What an MCP tool gave, as OpenEnv carries it: its text, its `data`, or JSON."""
    if isinstance(result, str):
        return result
    if isinstance(result, dict):
        if result.get("data") is not None:
            return result_text(result["data"])
        texts = [part["text"] for part in result.get("content") or [] if isinstance(part, dict) and "text" in part]
        if texts:
            return "\n".join(texts)
    return orjson.dumps(result).decode()
