"""From what a person types, or a file holds, to assistant messages."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.cli.env_options import json_or_text
from agentrl.messages import Message, assistant

CALL = '/TOOL {"argument": value} or /TOOL argument=value …'
BLOCK = '"""'

Tools = Sequence[Mapping[str, Any]]


def read_action(read_line: Callable[[], str], tools: Tools = ()) -> Message:
    """The next action. What stands between two lines of `\"\"\"` is one answer of several lines.

    Raises EOFError when there are no more lines, ValueError for a call that cannot be read.
    """
    line = read_line()
    if line.strip() != BLOCK:
        return parse(line, tools)
    lines: list[str] = []
    while (line := read_line()).strip() != BLOCK:
        lines.append(line)
    return assistant("\n".join(lines))


def parse(line: str, tools: Tools = ()) -> Message:
    """The assistant message that a line stands for. `//` begins an answer that begins with `/`.

    Raises ValueError for a call that cannot be read.
    """
    if not line.startswith("/"):
        return assistant(line)
    if line.startswith("//"):
        return assistant(line[1:])
    name, _, given = line[1:].strip().partition(" ")
    function = {"name": name, "arguments": _arguments(given.strip(), _parameters(name, tools))}
    call = {"id": f"call_{uuid.uuid4().hex[:8]}", "type": "function", "function": function}
    return assistant(None, tool_calls=[call])


def signature(function: Mapping[str, Any]) -> str:
    """A tool as a line: its name, its arguments with their types, and what it does."""
    parameters = function.get("parameters") or {}
    required = parameters.get("required", [])
    arguments = [
        f"{name}{'' if name in required else '?'}: {_type(schema, parameters)}"
        for name, schema in (parameters.get("properties") or {}).items()
    ]
    return f"/{function.get('name')} ({', '.join(arguments)}): {function.get('description', '')}"


def _arguments(given: str, parameters: Mapping[str, Any]) -> str:
    if not given or given[0] in "{[":
        try:
            json.loads(given or "{}")
        except ValueError as error:
            raise ValueError(f"the arguments {given!r} are not JSON ({error}); type {CALL}") from None
        return given or "{}"
    found: dict[str, Any] = {}
    try:
        words = shlex.split(given)
    except ValueError as error:
        raise ValueError(f"the arguments {given!r} cannot be read ({error}); type {CALL}") from None
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"{word!r} is neither JSON nor argument=value; type {CALL}")
        is_text = (parameters.get(key) or {}).get("type") == "string"
        found[key] = value if is_text else json_or_text(value)
    return json.dumps(found, ensure_ascii=False)


def _parameters(name: str, tools: Tools) -> Mapping[str, Any]:
    for tool in tools:
        function = tool.get("function") or {}
        if function.get("name") == name:
            return (function.get("parameters") or {}).get("properties") or {}
    return {}


def _type(schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _type((root.get("$defs") or {}).get(name) or {}, {}) if root else name
    if "enum" in schema:
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " | ".join(_type(part, root) for part in schema[choice])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items') or {}, root)}"
    return str(kind)
