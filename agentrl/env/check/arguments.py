"""Arguments of a tool made up from its JSON schema: ones that fit, and ones that do not."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

_DEEPEST = 6  # of a schema that refers to itself


def fitting(schema: Mapping[str, Any], rng: random.Random, words: Sequence[str]) -> dict[str, Any]:
    """Arguments that the schema allows; optional ones are given half the time. `words` are what strings are made of."""
    made = _value(schema, schema, rng, words, 0)
    return made if isinstance(made, dict) else {}


def misfitting(schema: Mapping[str, Any], rng: random.Random, words: Sequence[str]) -> dict[str, Any]:
    """Arguments that are wrong in one way: one too few, one too many, or one of another type."""
    made = fitting(schema, rng, words)
    if made and rng.random() < 0.4:
        made.pop(rng.choice(sorted(made)))
        return made
    if made and rng.random() < 0.7:
        made[rng.choice(sorted(made))] = rng.choice([None, [], {"a": 1}, -1, 1.5e308, "", True])
        return made
    return {**made, "no_such_argument": 1}


def _value(node: Any, root: Mapping[str, Any], rng: random.Random, words: Sequence[str], depth: int) -> Any:
    if not isinstance(node, Mapping) or depth > _DEEPEST:
        return None
    if "$ref" in node:
        return _value(_resolved(str(node["$ref"]), root), root, rng, words, depth + 1)
    if "const" in node:
        return node["const"]
    if node.get("enum"):
        return rng.choice(list(node["enum"]))
    for choice in ("anyOf", "oneOf", "allOf"):
        if node.get(choice):
            return _value(rng.choice(list(node[choice])), root, rng, words, depth + 1)
    kind = node.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    match kind:
        case "object":
            return _object(node, root, rng, words, depth)
        case "array":
            most = min(int(node.get("maxItems", 3)), 3)
            size = max(int(node.get("minItems", 0)), rng.randint(0, max(most, 0)))
            if "prefixItems" in node:
                return [_value(item, root, rng, words, depth + 1) for item in node["prefixItems"]]
            return [_value(node.get("items", {}), root, rng, words, depth + 1) for _ in range(size)]
        case "integer":
            return _integer(node, rng)
        case "number":
            return float(_integer(node, rng)) if rng.random() < 0.5 else _number(node, rng)
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
    return _string(node, rng, words)


def _object(
    node: Mapping[str, Any], root: Mapping[str, Any], rng: random.Random, words: Sequence[str], depth: int
) -> dict[str, Any]:
    required = node.get("required", [])
    return {
        name: _value(part, root, rng, words, depth + 1)
        for name, part in node.get("properties", {}).items()
        if name in required or rng.random() < 0.5
    }


def _integer(node: Mapping[str, Any], rng: random.Random) -> int:
    low = int(node.get("minimum", node.get("exclusiveMinimum", -2) + 1))
    high = int(node.get("maximum", node.get("exclusiveMaximum", low + 13) - 1))
    return rng.randint(low, max(low, high))


def _number(node: Mapping[str, Any], rng: random.Random) -> float:
    low = float(node.get("minimum", node.get("exclusiveMinimum", -2.0)))
    high = float(node.get("maximum", node.get("exclusiveMaximum", low + 12.0)))
    return round(rng.uniform(low, high), 3)


def _string(node: Mapping[str, Any], rng: random.Random, words: Sequence[str]) -> str:
    text = " ".join(rng.choice(words) for _ in range(rng.randint(1, 2))) if words else "word"
    shortest, longest = int(node.get("minLength", 0)), int(node.get("maxLength", 10_000))
    return (text + "x" * (shortest - len(text)))[:longest]


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for part in reference.removeprefix("#/").split("/"):
        node = node.get(part, {}) if isinstance(node, Mapping) else {}
    return node
