"""A tool call's arguments (text) as the `input` of a `tool_use` block (a JSON object), and back.

`arguments_of(json.loads(input_json(a)))` is canonically equal to `a` for every text `a`, so that an echoed call is
found again. Arguments that no JSON object can stand for (no JSON, an array, NaN, half a surrogate pair, …) travel as
`{"_raw": text}`; so do those that look like that themselves.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

RAW = "_raw"
MAX_DEPTH = 100
"""Clients' parsers give up on deeper values (the Anthropic SDK's at 200)."""


def input_json(arguments: str) -> str:
    """The `input` of a call as JSON text, always an object."""
    try:
        value = json.loads(arguments)
        if isinstance(value, dict) and not _is_raw(value) and not _deeper(value, MAX_DEPTH):
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            text.encode()
            return text
    except (ValueError, RecursionError):
        pass
    return json.dumps({RAW: arguments}, ensure_ascii=False)


def arguments_of(tool_input: Mapping[str, Any]) -> str:
    """The arguments that an `input` stands for, as JSON text unless they were none."""
    return str(tool_input[RAW]) if _is_raw(tool_input) else json.dumps(tool_input, ensure_ascii=False)


def _is_raw(value: Mapping[str, Any]) -> bool:
    return len(value) == 1 and isinstance(value.get(RAW), str)


def _deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth == 0 or any(_deeper(item, depth - 1) for item in items)
