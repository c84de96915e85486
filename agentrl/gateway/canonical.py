"""When two chat messages are the same message, and keys for whole conversations.

Clients echo what they were given in their own way: keys reordered, nulls added or left out, text as parts, JSON
arguments respaced. None of that makes another conversation; another role, text, call id or argument value does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from agentrl.digest import update
from agentrl.messages import text_of


def canonical(message: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of a message that make it what it is; equal messages give equal values."""
    found: dict[str, Any] = {"role": message["role"]}
    if text := text_of(message):
        found["content"] = text
    for key in ("reasoning_content", "name", "tool_call_id"):
        if message.get(key):
            found[key] = message[key]
    if calls := message.get("tool_calls"):
        found["tool_calls"] = [
            [call.get("id"), call["function"]["name"], canonical_arguments(call["function"]["arguments"])]
            for call in calls
        ]
    return found


def canonical_arguments(arguments: str) -> str:
    """JSON objects with their spacing, key order and spelling of numbers taken out; anything else as it is."""
    try:
        value = json.loads(arguments, parse_float=_number)
        return json.dumps(value, sort_keys=True) if isinstance(value, dict) else arguments
    except (ValueError, RecursionError):
        return arguments


def _number(text: str) -> float | int:
    """JavaScript has one kind of number and writes 1.0 as 1; beyond 2**53 its integers are no longer exact."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) <= 2**53 else value


def root_key(tools: Sequence[Mapping[str, Any]] | None, template_kwargs: Mapping[str, Any] | None = None) -> bytes:
    """The key of no messages yet. Tools and the template's variables are part of it: they may stand in the first turn.

    Raises RecursionError for a schema that is nested too deep.
    """
    if not tools and not template_kwargs:
        return _ROOT
    return _root_key(tools, template_kwargs)


def _root_key(tools: Sequence[Mapping[str, Any]] | None, template_kwargs: Mapping[str, Any] | None) -> bytes:
    rest = [template_kwargs] if template_kwargs else []
    return hashlib.blake2b(json.dumps([tools or [], *rest], sort_keys=True).encode(), digest_size=16).digest()


_ROOT = _root_key(None, None)


def answer_keys(key: bytes, answer: Mapping[str, Any]) -> list[bytes]:
    """Keys of a conversation with an answer, in the forms in which clients send it back: many leave reasoning out."""
    keys = [extend_key(key, answer)]
    if answer.get("reasoning_content"):
        keys.append(extend_key(key, {**answer, "reasoning_content": None}))
    return keys


def extend_key(key: bytes, message: Mapping[str, Any]) -> bytes:
    """The key of a conversation with one more message."""
    digest = hashlib.blake2b(key, digest_size=16)
    update(digest, orjson.dumps(canonical(message), option=orjson.OPT_SORT_KEYS))
    return digest.digest()


def conversation_keys(
    messages: Iterable[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[bytes]:
    """Keys of every prefix: item i is that of the first i messages. [len(messages) + 1]"""
    keys = [root_key(tools, template_kwargs)]
    for message in messages:
        keys.append(extend_key(keys[-1], message))
    return keys


class LastKeys:
    """`conversation_keys` of one session's requests, of which each repeats most of the one before."""

    def __init__(self) -> None:
        self._last: tuple[Sequence[Mapping[str, Any]], list[bytes]] = [], []

    def of(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[bytes]:
        """Of every prefix. [len(messages) + 1]"""
        keys = [root_key(tools, template_kwargs)]
        known_messages, known = self._last
        if known[:1] == keys:
            same = 0
            for mine, theirs in zip(known_messages, messages, strict=False):
                if mine != theirs:  # equal ones have the same texts, and nothing else of them is in a key
                    break
                same += 1
            keys = known[: same + 1]
        for message in messages[len(keys) - 1 :]:
            keys.append(extend_key(keys[-1], message))
        self._last = messages, keys
        return keys
