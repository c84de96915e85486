"""Builders for the tests of the parsers: a whole reading of a text, and what the families' texts are made of."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from agentrl.gateway.deltas import Content, Delta, Reasoning, ToolCall
from agentrl.gateway.parsers import FAMILIES
from agentrl.gateway.parsers.base import OutputParser, ParseOptions

DS_CALLS, DS_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS_CALL, DS_CALL_END, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def function(name: str, **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [
    function("now"),
    function("weather", city={"type": "string"}, days={"type": "integer"}),
]

ONE_CALL = {
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=weather>\n<parameter=city>\nKöln\n</parameter>\n</function>\n</tool_call>",
    "llama3": '{"name": "weather", "parameters": {"city": "Köln"}}',
    "mistral": '[TOOL_CALLS]weather[ARGS]{"city": "Köln"}',
    "deepseek": f'{DS_CALLS}{DS_CALL}weather{DS_SEP}{{"city": "Köln"}}{DS_CALL_END}{DS_CALLS_END}',
    "glm": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Köln</arg_value>\n</tool_call>",
    "gpt_oss": '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Köln"}<|call|>',
}
"""weather(city="Köln") as each family writes it."""

NO_ARGUMENTS = {
    "hermes": '<tool_call>{"name":"now","arguments":{}}</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "llama3": '{"name": "now", "parameters": {}}',
    "mistral": "[TOOL_CALLS]now{}",
    "deepseek": f"{DS_CALLS}{DS_CALL}now{DS_SEP}{{}}{DS_CALL_END}{DS_CALLS_END}",
    "glm": "<tool_call>now\n</tool_call>",
    "gpt_oss": "<|channel|>commentary to=functions.now<|message|>{}<|call|>",
}
BETWEEN = {"llama3": "; ", "mistral": "", "gpt_oss": "<|start|>assistant"}
"""What stands between two calls; a newline in the other families."""

PIECES = {
    "hermes": ["<tool_call>", "</tool_call>", '{"name":"f","arguments":{}}', '{"name":"f","arguments":'],
    "qwen3_coder": [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "</function>",
        "<parameter=a>",
        "</parameter>",
        "<function=",
    ],
    "llama3": ["<|python_tag|>", ";", '{"name":"f","parameters":{}}', "<|eom_id|>", '{"name":"f"}'],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "f", "{}", '[{"name":"f","arguments":{}}]', "[", "[THINK]", "[/THINK]"],
    "deepseek": [DS_CALLS, DS_CALLS_END, DS_CALL, DS_CALL_END, DS_SEP, "f", "function", "\n```json\n", "```", "{}"],
    "glm": ["<tool_call>", "</tool_call>", "f", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    "gpt_oss": [
        "<|start|>assistant",
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
        "<|constrain|>json",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
        "<|channel|>analysis<|message|>",
        "<|channel|>final<|message|>",
    ],
    "plain": [],
}
COMMON_PIECES = ["<think>", "</think>", " ", "\n", "x", "é", "<", '"', "\\", "{", "}", '{"a":"', '"}', ',"b":1', "[1]"]


def call_with(family: str, argument: str) -> str:
    """weather(city=argument) as a family writes it."""
    quoted = argument if family in ("qwen3_coder", "glm") else json.dumps(argument, ensure_ascii=False)[1:-1]
    return ONE_CALL[family].replace("Köln", quoted)


class Parsed(NamedTuple):
    """What the deltas of one answer add up to."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]


def parser_of(family: str, *, tools: Sequence[Any] = TOOLS, in_reasoning: bool = False) -> OutputParser:
    ids = count(100_000_000)
    options = ParseOptions(tools=tools, in_reasoning=in_reasoning, new_id=lambda: str(next(ids)))
    return FAMILIES[family].parser(options)


def parsed(family: str, *texts: str, stopped: bool = True, **options: Any) -> Parsed:
    """The reading of `texts`, fed one after the other."""
    parser = parser_of(family, **options)
    deltas = [delta for text in texts for delta in parser.feed(text)]
    return added_up([*deltas, *parser.finish(stopped=stopped)])


def added_up(deltas: Iterable[Delta]) -> Parsed:
    found = Parsed("", "", [])
    for delta in deltas:
        if isinstance(delta, Content):
            found = found._replace(content=found.content + delta.text)
        elif isinstance(delta, Reasoning):
            found = found._replace(reasoning=found.reasoning + delta.text)
        elif isinstance(delta, ToolCall):
            found.calls.append((delta.name, delta.arguments))
    return found
