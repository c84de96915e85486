"""Our readings against those of vLLM's own parsers, recorded by tools/parser_references.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from parser_builders import DS_CALL, DS_CALL_END, DS_CALLS, DS_CALLS_END, DS_SEP, parsed

FIXTURES = Path(__file__).parent / "fixtures" / "parsers"
FAMILIES = ("deepseek", "glm", "hermes", "llama3", "mistral", "qwen3_coder")

CUT_OFF = "a call that never ends is no call, and its text is not lost"
VALUE_SPELLS_MARK = "a mark in an argument is the argument's text"
NO_ARGUMENTS = "a call without arguments in JSON is malformed, so it stays text"

DIFFERENT: dict[str, dict[str, str]] = {
    "hermes": {
        '<tool_call>{"name": "write", "arguments": {"text": "</tool_call>"}}</tool_call>': VALUE_SPELLS_MARK,
        '<tool_call>{"name": "now", "arguments": {}}': CUT_OFF,
    },
    "qwen3_coder": {
        "<tool_call>\n<function=weather>\n<parameter=city>\nPar": CUT_OFF,
        "<tool_call>\n<function=write>\n<parameter=text>\n</function>\n</parameter>\n</function>\n"
        "</tool_call>": VALUE_SPELLS_MARK,
        "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</function>\n"
        "</tool_call>": "a value ends at its own mark: what is missing is not guessed",
    },
    "glm": {
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par": CUT_OFF,
        "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value></tool_call></arg_value>\n"
        "</tool_call>": VALUE_SPELLS_MARK,
        "<tool_call>unknown\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>": (
            "whether a tool exists is for the environment to answer"
        ),
    },
    "llama3": {
        'I would call {"name": "now", "parameters": {}}': "an object behind text, without a mark, is an example",
        '{"name": "now", "parameters": {}} and then?': "an object before text, without a mark, is an example",
    },
    "mistral": {
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "weather", "arguments": '
        '{"city": "[TOOL_CALLS] ]"}}]': VALUE_SPELLS_MARK,
        '[TOOL_CALLS]write[ARGS]{"text": "[TOOL_CALLS]"}': VALUE_SPELLS_MARK,
        '[TOOL_CALLS] [{"name": "now"}]': NO_ARGUMENTS,
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}': CUT_OFF,
    },
    "deepseek": {
        f'{DS_CALLS}{DS_CALL}function{DS_SEP}weather\n```json\n{{"city": "Par': CUT_OFF,
        f'{DS_CALLS}{DS_CALL}write{DS_SEP}{{"text": "{DS_CALL_END}"}}{DS_CALL_END}{DS_CALLS_END}': VALUE_SPELLS_MARK,
        f"{DS_CALL}now{DS_SEP}{{}}{DS_CALL_END}": "a closed call is a call without the marks around all calls, too",
    },
}
"""Samples that we read otherwise on purpose, and why."""


def recorded(family: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{family}.json").read_text())
    return found


def comparable(content: str | None, reasoning: str | None, calls: list[tuple[str, str]]) -> Any:
    """Text stripped, arguments as JSON where they are."""
    return (content or "").strip(), (reasoning or "").strip(), [(name, _json(text)) for name, text in calls]


def _json(text: str) -> Any:
    try:
        return "JSON", json.loads(text)
    except ValueError:
        return "text", text


SAMPLES = [(family, number) for family in FAMILIES for number in range(len(recorded(family)["samples"]))]


@pytest.mark.parametrize(("family", "number"), SAMPLES)
def test_a_sample_is_read_as_vllm_reads_it_unless_we_differ_on_purpose(family: str, number: int) -> None:
    fixture = recorded(family)
    sample = fixture["samples"][number]
    theirs = comparable(
        sample["content"], sample["reasoning"], [(call["name"], call["arguments"]) for call in sample["calls"]]
    )
    ours = comparable(*parsed(family, sample["text"], tools=fixture["tools"]))
    reason = DIFFERENT[family].get(sample["text"])
    assert (ours == theirs) == (reason is None), reason or "read differently, for no reason that is written down"


@pytest.mark.parametrize("family", FAMILIES)
def test_every_difference_is_one_of_a_recorded_sample(family: str) -> None:
    assert set(DIFFERENT[family]) <= {sample["text"] for sample in recorded(family)["samples"]}
