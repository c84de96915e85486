"""Arguments that a model wrote as untyped text between marks → a JSON object, by the tool's schema.

A value of type string stays as it is. Any other is JSON, kept as it was written; where it is no JSON (or not of the
schema's types, when a string would do) it stays a string, for the tool to answer with an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentrl.gateway.parsers.base import Tools

MAX_DEPTH = 16
"""References and alternatives followed into a schema."""

_TYPE_OF = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Qwen3-coder's template shows these values to the model as Python spells them."""


def arguments_json(name: str, pairs: Iterable[tuple[str, str]], tools: Tools) -> str:
    """The JSON object of a call's (parameter, text) pairs. The last of a repeated parameter counts."""
    parameters = next((f.get("parameters") for t in tools if (f := t.get("function", t)).get("name") == name), None)
    root = parameters if isinstance(parameters, Mapping) else {}
    properties = root.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    values = {key: _value_json(text, _types(known.get(key), root, 0)) for key, text in pairs}
    written = (f"{json.dumps(key, ensure_ascii=False)}: {value}" for key, value in values.items())
    return "{" + ", ".join(written) + "}"


def _value_json(text: str, types: set[str]) -> str:
    if types and types != {"string"}:
        spelled = _PYTHON.get(text.strip(), text.strip())
        try:
            value = msgspec.json.decode(spelled)
        except (ValueError, msgspec.MsgspecError, RecursionError):
            pass
        else:
            if "string" not in types or _type_of(value) & types:
                return spelled
    return json.dumps(text, ensure_ascii=False)


def _type_of(value: Any) -> set[str]:
    if isinstance(value, list):
        return {"array"}
    if isinstance(value, dict):
        return {"object"}
    if isinstance(value, str):
        return set()  # JSON in quotes where a bare string would do: it is the string
    name = _TYPE_OF[type(value)]
    return {name, "number"} if name == "integer" else {name}


def _types(schema: Any, root: Mapping[str, Any], depth: int) -> set[str]:
    """The JSON types that a schema allows, as far as it says. Empty: it says nothing."""
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return set()
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth + 1)
    types = {name for name in _listed(schema.get("type")) if isinstance(name, str)}
    if not types:
        values = schema["enum"] if "enum" in schema else schema.get("const", ())
        types = {name for value in _listed(values) for name in _type_of(value) or {"string"}}
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in _listed(schema.get(key, ())):
            types |= _types(choice, root, depth + 1)
    return types


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else (value,)


def _referred(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
