"""A call that is one JSON object: {"name": …, "arguments": …}."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

NamedCall = tuple[str, str]
"""(name, arguments as they were written)."""


class _Call(msgspec.Struct):
    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


_one = msgspec.json.Decoder(_Call)
_several = msgspec.json.Decoder(list[_Call])


def call_of(text: str, *, or_parameters: bool = False) -> NamedCall | None:
    """The call that this JSON object is. None when it is none: no string `name`, or no `arguments`."""
    return _named(_decoded(_one, text), or_parameters)


def calls_of(text: str) -> list[NamedCall] | None:
    """The calls of a JSON list, or of one object. None when any of its items is no call, or there is none."""
    found = _decoded(_several, text) if text.startswith("[") else [_decoded(_one, text)]
    calls = [_named(item, False) for item in found or []]
    whole = [call for call in calls if call is not None]
    return whole if whole and len(whole) == len(calls) else None


def _decoded(decoder: msgspec.json.Decoder[T], text: str) -> T | None:
    try:
        return decoder.decode(text)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _named(call: _Call | None, or_parameters: bool) -> NamedCall | None:
    if call is None:
        return None
    raw = bytes(call.arguments) or (bytes(call.parameters) if or_parameters else b"")
    return (call.name, raw.decode()) if raw else None
