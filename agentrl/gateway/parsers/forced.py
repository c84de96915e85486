"""What an engine is kept to when a call is required: xgrammar's structural tags, as vLLM takes them.

Marks are written as text. xgrammar masks by each token's text, so a mark that is one token of its own matches too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.gateway.parsers.base import Tools
from agentrl.types import Constraint

Format = dict[str, Any]

WHITE: Format = {"type": "regex", "pattern": "[\\n ]{0,4}"}


def wanted(tools: Tools, name: str | None) -> list[Mapping[str, Any]]:
    """The functions that may be called: {"name", "parameters", …}."""
    functions = [tool.get("function", tool) for tool in tools]
    return [function for function in functions if name is None or function["name"] == name]


def schema(function: Mapping[str, Any], style: str = "json") -> Format:
    """The function's arguments. A function that says nothing of its parameters has none."""
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return as_json(parameters) | {"style": style}


def as_json(kept_to: Any) -> Format:
    """JSON by a schema. Its white space is bounded, for a policy that strays there would go on to its last token."""
    return {"type": "json_schema", "json_schema": kept_to, "max_whitespace_cnt": 12}


def may_be_empty(function: Mapping[str, Any]) -> bool:
    """Whether the function can be called without arguments, which XML-like forms then leave no line for."""
    return not (function.get("parameters") or {}).get("required")


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def either(formats: Sequence[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": list(formats)}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def one_or_more(tags: Sequence[Format], separator: str, parallel: bool) -> Format:
    """One of `tags`, or several when calls may be `parallel`, and nothing between them but the separator."""
    if not parallel:
        return either(tags)
    return {"type": "tags_with_separator", "tags": list(tags), "separator": separator, "at_least_one": True}


def anything_until(*ends: str) -> Format:
    return tag("", {"type": "any_text"}, ends[0]) if len(ends) == 1 else either([anything_until(end) for end in ends])


def constraint(calls: Format, think: Mapping[str, str], in_reasoning: bool) -> Constraint:
    """`calls` after reasoning: that the prompt opened, or that the model opens if it likes to."""
    if in_reasoning:
        ends = [anything_until(end) for end in dict.fromkeys(think.values())]
        return structural_tag(sequence(either(ends), WHITE, calls))
    blocks = [tag(begin, {"type": "any_text"}, end) for begin, end in think.items()]
    return structural_tag(sequence(optional(sequence(either(blocks), WHITE)), calls) if blocks else calls)


def json_answer(wanted: Constraint, calls: Constraint | None, in_reasoning: bool) -> Constraint:
    """JSON that is `wanted`, or else what `calls` keeps to. Thoughts that the prompt opened are left free.

    Anything but JSON, which only a session's own pins can want, is left as it is.
    """
    if wanted.kind not in ("json", "json_object") or (calls is None and not in_reasoning):
        return wanted
    kept_to = wanted.value if wanted.kind == "json" else {"type": "object"}
    answer = as_json(kept_to)
    if in_reasoning:
        answer = sequence(anything_until("</think>"), WHITE, answer)
    return structural_tag(either([answer] if calls is None else [json.loads(calls.value)["format"], answer]))


def structural_tag(format_: Format) -> Constraint:
    value = json.dumps({"type": "structural_tag", "format": format_}, ensure_ascii=False)
    return Constraint(kind="structural_tag", value=value)
