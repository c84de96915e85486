"""Lines of conversations and pairs, read and checked. Every complaint names file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import ConfigError
from agentrl.messages import Message

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Conversation:
    """`trained[i]`: whether message i may be trained at all; False where the line says `"train": false`."""

    where: str
    messages: list[Message]
    trained: list[bool]
    tools: list[dict[str, Any]]


@dataclass(frozen=True)
class Pair:
    """Two continuations of the same messages."""

    where: str
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    tools: list[dict[str, Any]]


def conversations(path: Path) -> Iterator[Conversation]:
    """Of lines `{"messages": [...], "tools": [...]}`. Raises ConfigError."""
    for where, line in _lines(path):
        given = _known(line, ("messages", "tools"), where)
        messages = _messages(given.get("messages"), where, "messages")
        trained = [message.pop("train", True) for message in messages]
        if not all(isinstance(flag, bool) for flag in trained):
            raise ConfigError(f'{where}: "train" of a message is true or false, not {trained!r}')
        yield Conversation(where, messages, trained, _tools(given, where))


def pairs(path: Path) -> Iterator[Pair]:
    """Of lines `{"prompt" or "messages", "chosen", "rejected", "tools"}`. Raises ConfigError."""
    for where, line in _lines(path):
        given = _known(line, ("prompt", "messages", "chosen", "rejected", "tools"), where)
        if ("prompt" in given) == ("messages" in given):
            raise ConfigError(f'{where}: a pair has "prompt", or "messages", before its two answers; give one of them')
        name = "prompt" if "prompt" in given else "messages"
        prompt = _said(given[name], where, name, role="user")
        answers = [_said(given.get(side), where, side, role="assistant") for side in ("chosen", "rejected")]
        for side, answer in zip(("chosen", "rejected"), answers, strict=True):
            if answer[-1].role != "assistant":
                raise ConfigError(f"{where}: {side} ends with a message of {answer[-1].role!r}; it is an assistant's")
        if answers[0] == answers[1]:
            raise ConfigError(f"{where}: chosen and rejected are the same answer; leave the line out")
        yield Pair(where, prompt, answers[0], answers[1], _tools(given, where))


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield f"{path}:{number}", _object(line, f"{path}:{number}")
    except OSError as error:
        raise ConfigError(f"the data file cannot be read: {error}") from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: a line is one JSON object, not {type(found).__name__}")
    return found


def _known(line: dict[str, Any], keys: tuple[str, ...], where: str) -> dict[str, Any]:
    """Only these keys, and `metadata`, which is for people."""
    if unknown := sorted(line.keys() - {*keys, "metadata"}):
        raise ConfigError(f"{where}: unknown {unknown}; a line has {', '.join(keys)} (and metadata, which is not read)")
    return {key: value for key, value in line.items() if value is not None}


def _said(value: object, where: str, name: str, *, role: str) -> list[Message]:
    """A text is one message of `role`; a message is a list of one."""
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    return _messages([value] if isinstance(value, dict) else value, where, name)


def _messages(value: object, where: str, name: str) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: {name} is {value!r:.80}; it is a list of messages, at least one")
    return [_message(one, f"{where}: {name}[{index}]") for index, one in enumerate(value)]


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict) or value.get("role") not in ROLES:
        raise ConfigError(f"{where} is {value!r:.80}; a message has a role of {', '.join(ROLES)}")
    content = value.get("content")
    if not (content is None or isinstance(content, str) or _is_text_parts(content)):
        raise ConfigError(f"{where}.content is {content!r:.80}; it is a text, text parts, or null")
    message = Message({key: one for key, one in value.items() if one is not None})
    message["content"] = content
    if "tool_calls" in message:
        message["tool_calls"] = _calls(message["tool_calls"], where)
    return message


def _is_text_parts(content: object) -> bool:
    return isinstance(content, list) and all(
        isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str) for part in content
    )


def _calls(value: object, where: str) -> list[dict[str, Any]]:
    calls = value if isinstance(value, list) else [None]
    functions = [call.get("function") if isinstance(call, dict) else None for call in calls]
    for function in functions:
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise ConfigError(f"{where}.tool_calls is {value!r:.80}; each call has a function with name and arguments")
    return [
        {"id": str(call.get("id") or ""), "type": "function", "function": _function(function)}
        for call, function in zip(calls, functions, strict=True)
        if isinstance(function, Mapping)
    ]


def _function(function: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON text, which OpenAI's form has; data sets have objects too."""
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"name": function["name"], "arguments": text}


def _tools(given: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    tools = given.get("tools", [])
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ConfigError(f"{where}: tools is {tools!r:.80}; it is a list of tool schemas in OpenAI form")
    return tools
