"""Chat messages in OpenAI form: a dict on the wire, with the few accessors that people want."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentrl.types import Call, Trajectory


class Message(dict[str, Any]):
    """One chat message. It *is* the OpenAI dict, so `json.dumps(message)` is its wire form."""

    @property
    def role(self) -> str:
        return str(self["role"])

    @property
    def text(self) -> str:
        """The text content; text parts joined, other parts left out, "" when there is none."""
        return text_of(self)

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """OpenAI tool calls, `[]` when there are none."""
        return self.get("tool_calls") or []


def text_of(message: Mapping[str, Any]) -> str:
    """`Message.text` of any mapping."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if part.get("type") == "text")


def written_out(given: Mapping[str, Any]) -> Message:
    """The message as text alone, for templates that know nothing else: calls are written out as JSON."""
    message = Message(given)
    calls = "".join(f"\n{json.dumps(call.get('function', {}))}" for call in message.tool_calls)
    return Message(role=message.get("role"), content=f"{message.text}{calls}".strip())


def system(content: str | list[dict[str, Any]]) -> Message:
    return Message(role="system", content=content)


def user(content: str | list[dict[str, Any]]) -> Message:
    return Message(role="user", content=content)


def assistant(content: str | None = None, *, tool_calls: list[dict[str, Any]] | None = None) -> Message:
    message = Message(role="assistant", content=content)
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def tool(content: str | list[dict[str, Any]], *, tool_call_id: str) -> Message:
    return Message(role="tool", content=content, tool_call_id=tool_call_id)


def conversation_of(trajectory: Trajectory) -> list[Message]:
    """The messages of its last call's conversation, answers included; [] when nobody called."""
    calls = trajectory.calls
    path: list[Call] = []
    index = len(calls) - 1 if calls else None
    while index is not None:
        path.append(calls[index])
        index = calls[index].parent
    said: list[Message] = []
    for call in reversed(path):
        given = [Message({key: value for key, value in one.items() if value is not None}) for one in call.messages]
        said += [*given, Message(call.message)]
    return said
