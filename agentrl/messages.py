"""Chat messages in OpenAI form: a dict on the wire, with the few accessors that people want."""

from __future__ import annotations

from typing import Any


class Message(dict[str, Any]):
    """One chat message. It *is* the OpenAI dict, so `json.dumps(message)` is its wire form."""

    @property
    def role(self) -> str:
        return str(self["role"])

    @property
    def text(self) -> str:
        """The text content; text parts joined, other parts left out, "" when there is none."""
        content = self.get("content")
        if content is None:
            return ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")

    @property
    def tool_calls(self) -> list[dict[str, Any]]:
        """OpenAI tool calls, `[]` when there are none."""
        return self.get("tool_calls") or []


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
