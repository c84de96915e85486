"""What an answer is made of, as it is being sampled. Made by the reader of a call, taken by the dialects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from agentrl.types import Call


class Reasoning(Struct, frozen=True):
    """Text that the model thought to itself."""

    text: str


class Content(Struct, frozen=True):
    """Text of the answer."""

    text: str


class ToolCall(Struct, frozen=True):
    """One whole call. It comes when its end was sampled: a call that is cut off is never a call, so none is begun."""

    id: str
    name: str
    arguments: str  # as the model wrote them, JSON where it wrote JSON


Delta = Reasoning | Content | ToolCall


class Piece(Struct, frozen=True, kw_only=True):
    """Some tokens of one answer as they came. Deltas may lag behind: text that may yet become a call is held back."""

    token_ids: list[int]  # [n]
    logprobs: list[float] | None  # [n]; None when the engine sent none
    top_logprobs: list[list[tuple[int, float]]] | None = None  # [n][k], when they were asked for
    deltas: list[Delta] = []


class Answer(Struct, kw_only=True):
    """One finished choice of a response."""

    call: Call
    logprobs: list[float] | None = None  # [S], None when the engine sent none; the call of an untrained sample has none
    top_logprobs: list[list[tuple[int, float]]] | None = None  # [S][k], when they were asked for
    stop: str | None = None  # the stop string of the request that ended it
    reasoning_tokens: int = 0  # of its sampled tokens, those of the reasoning and its marks


def message_of(deltas: Iterable[Delta]) -> dict[str, Any]:
    """The OpenAI assistant message that these deltas add up to. Content is None beside calls when there is no text."""
    content, reasoning, calls = [], [], []
    for delta in deltas:
        if isinstance(delta, Content):
            content.append(delta.text)
        elif isinstance(delta, Reasoning):
            reasoning.append(delta.text)
        else:
            function = {"name": delta.name, "arguments": delta.arguments}
            calls.append({"id": delta.id, "type": "function", "function": function})
    text = "".join(content)
    message: dict[str, Any] = {"role": "assistant", "content": None if calls and not text else text}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def deltas_of(message: Mapping[str, Any]) -> list[Delta]:
    """The deltas of an assistant message made by `message_of`, to send a recorded answer again."""
    deltas: list[Delta] = []
    if reasoning := message.get("reasoning_content"):
        deltas.append(Reasoning(reasoning))
    if content := message.get("content"):
        deltas.append(Content(content))
    for call in message.get("tool_calls") or []:
        deltas.append(ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"]))
    return deltas
