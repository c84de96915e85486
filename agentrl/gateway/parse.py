"""Sampled text → assistant message: Hermes-style tool calls, `<tool_call>{"name": …, "arguments": …}</tool_call>`.

What is a call: a closed block with a JSON object that has a string `name` and `arguments`. Arguments that are no
object are passed on as they were written, for the environment to answer with an error. Everything else (malformed
JSON, a block that never closes, a missing field) is text and stays in the content, so that nothing is lost or run.
"""

from __future__ import annotations

import json
import secrets
import string
from collections.abc import Callable
from typing import Any

import msgspec

OPEN, CLOSE = "<tool_call>", "</tool_call>"
ALPHABET = string.ascii_letters + string.digits


class HermesCall(msgspec.Struct):
    name: str
    arguments: msgspec.Raw


_json = json.JSONDecoder()
_decoder = msgspec.json.Decoder(HermesCall)


def new_call_id() -> str:
    """Nine letters and digits: the only form that every family's template takes (Mistral's checks it)."""
    return "".join(secrets.choice(ALPHABET) for _ in range(9))


def assistant_message(text: str, *, tools: bool, new_id: Callable[[], str] = new_call_id) -> dict[str, Any]:
    """The message for one sampled text. Without `tools` (none given, or tool_choice "none") it is all content.

    With calls, `content` is the text around them, stripped, or None when there is none.
    """
    calls, rest = hermes_calls(text) if tools else ([], text)
    if not calls:
        return {"role": "assistant", "content": text}
    tool_calls = [
        {
            "id": new_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": bytes(call.arguments).decode()},
        }
        for call in calls
    ]
    return {"role": "assistant", "content": rest.strip() or None, "tool_calls": tool_calls}


def hermes_calls(text: str) -> tuple[list[HermesCall], str]:
    """The calls in `text`, in order, and the text without them."""
    calls: list[HermesCall] = []
    rest: list[str] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        found = _block(text, start + len(OPEN))
        if found is None:
            rest.append(text[at : start + len(OPEN)])
            at = start + len(OPEN)
            continue
        call, end = found
        calls.append(call)
        rest.append(text[at:start])
        at = end
    return calls, "".join([*rest, text[at:]])


def _block(text: str, start: int) -> tuple[HermesCall, int] | None:
    """The call whose JSON comes at `start`, and where its block ends. Tags inside its strings are text."""
    start = _skip_space(text, start)
    if not text.startswith("{", start):  # the parser's own error counts the lines before it: slow in a long text
        return None
    try:
        _, end = _json.raw_decode(text, start)
        call = _decoder.decode(text[start:end])
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    close = _skip_space(text, end)
    return (call, close + len(CLOSE)) if text.startswith(CLOSE, close) else None


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def trim_at_stop(text: str, stop_reason: str | int | None) -> str:
    """The text before the stop string that ended it. The ids stay as they were sampled."""
    if isinstance(stop_reason, str) and stop_reason and (at := text.find(stop_reason)) >= 0:
        return text[:at]
    return text
