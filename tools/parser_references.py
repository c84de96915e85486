"""What vLLM's own parsers make of sample texts, written to tests/gateway/fixtures/parsers/FAMILY.json.

    python tools/parser_references.py [FAMILY …]

It needs vLLM (a minute to import) but no engine, model or network: the parsers get a tokenizer that knows the family's
marks and nothing else. gpt_oss is not among the families: vLLM parses it by token ids of a vocabulary that
openai_harmony fetches when it runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "gateway" / "fixtures" / "parsers"


class Reference(NamedTuple):
    """The names of vLLM's parsers, and the marks that they ask of a vocabulary."""

    tool_parser: str
    reasoning_parser: str | None
    marks: tuple[str, ...]
    samples: tuple[str, ...]


class Marks:
    """A tokenizer of marks."""

    chat_template = None
    all_special_tokens: tuple[str, ...] = ()
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, marks: Sequence[str]) -> None:
        self._vocab = {mark: number for number, mark in enumerate(marks)}

    def get_vocab(self) -> dict[str, int]:
        return dict(self._vocab)

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._vocab.get(token)

    def encode(self, text: str, **options: Any) -> list[int]:
        return [self._vocab[text]] if text in self._vocab else [len(self._vocab)] * len(text)

    def decode(self, ids: Sequence[int], **options: Any) -> str:
        return "".join(list(self._vocab)[number] for number in ids)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [
    tool("now"),
    tool("weather", city="string", days="integer"),
    tool("write", path="string", text="string", mode="integer", append="boolean", ratio="number"),
    tool("plan", steps="array", options="object", note=["string", "null"]),
]
THINK = ("<think>", "</think>")
DS_CALLS, DS_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DS_CALL, DS_CALL_END, DS_SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
DS_MARKS = (*THINK, DS_CALLS, DS_CALLS_END, DS_CALL, DS_CALL_END, DS_SEP)

HERMES = (
    "plain text",
    "no call: { } < >",
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    '<tool_call>{"name":"weather","arguments":{"city":"Köln","days":3}}</tool_call>',
    'Let me look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n'
    '<tool_call>\n{"arguments": {"city": "Rome"}, "name": "weather"}\n</tool_call>',
    '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "now", "arguments": null}</tool_call>',
    '<tool_call>{"name": "now", "arguments": "x"}</tool_call>',
    '<tool_call>{"name": "now"}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {"a":}}</tool_call>',
    '<tool_call>{"name": "unknown", "arguments": {"a": 1}}</tool_call>',
    '<tool_call>{"name": "write", "arguments": {"text": "</tool_call>"}}</tool_call>',
    '<tool_call>{"name": "write", "arguments": {"text": "a\\nb \\"c\\" é"}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": {}}',
    '<tool_call>{"name": "now", "arg',
    '<think>\nI need the time.\n</think>\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "<think>\nA short thought.\n</think>\n\nThe answer is 4.",
)


def _coder(name: str, **parameters: str) -> str:
    written = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters.items())
    return f"<tool_call>\n<function={name}>\n" + "".join(written) + "</function>\n</tool_call>"


QWEN3_CODER = (
    "plain text",
    "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "</function>\n</tool_call>",
    "Let me look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n</tool_call>",
    "<tool_call><function=weather><parameter=city>Rome</parameter></function></tool_call>",
    "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
    "<tool_call>\n<function=weather>\n<parameter=city>\nA\n</parameter>\n</function>\n</tool_call>",
    _coder("write", path="a.py", text="\nif a < b:\n    c = '<x>'\n", mode="420", append="true", ratio="0.5"),
    "<tool_call>\n<function=write>\n<parameter=append>\nFalse\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=write>\n<parameter=mode>\nrw\n</parameter>\n</function>\n</tool_call>",
    _coder("plan", steps='["a", {"b": 1}]', options='{"deep": {}}', note="null"),
    "<tool_call>\n<function=plan>\n<parameter=steps>\n[1, \n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=plan>\n<parameter=note>\n5\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=planet>\n7\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=unknown>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=write>\n<parameter=text>\n</function>\n</parameter>\n</function>\n</tool_call>",
    "<tool_call>\n<function=weather>\n<parameter=city>\nPar",
    "<think>\nHm.\n</think>\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "<think>\nHm.\n</think>\n\nFour.",
)
GLM = (
    "plain text",
    "<tool_call>now\n</tool_call>",
    "<tool_call>now</tool_call>",
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>3</arg_value>\n</tool_call>",
    "\nLet me look.\n<tool_call>weather<arg_key>city</arg_key><arg_value>12</arg_value></tool_call>",
    "<tool_call>now\n</tool_call>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>A</arg_value>\n</tool_call>",
    "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value>\n  a < b\n</arg_value>\n<arg_key>append</arg_key>\n"
    "<arg_value>true</arg_value>\n<arg_key>ratio</arg_key>\n<arg_value>0.25</arg_value>\n</tool_call>",
    '<tool_call>plan\n<arg_key>steps</arg_key>\n<arg_value>["a"]</arg_value>\n<arg_key>options</arg_key>\n'
    '<arg_value>{"a": [null]}</arg_value>\n</tool_call>',
    "<tool_call>write\n<arg_key>mode</arg_key>\n<arg_value>rw</arg_value>\n</tool_call>",
    "<tool_call>unknown\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "<tool_call>write\n<arg_key>text</arg_key>\n<arg_value></tool_call></arg_value>\n</tool_call>",
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Par",
    "<think>Hm.</think>\n<tool_call>now\n</tool_call>",
    "<think>Hm.</think>\nFour.",
)
LLAMA3 = (
    "plain text",
    '{"name": "now", "parameters": {}}',
    '{"name": "weather", "parameters": {"city": "Paris", "days": 3}}',
    '<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}}',
    '{"name": "now", "parameters": {}}; {"name": "weather", "parameters": {"city": "A; {"}}',
    '{"name": "now", "arguments": {}}',
    '{"name": "unknown", "parameters": {"a": {"b": [1]}}}',
    '{"name": "now", "parameters": [1]}',
    '{"name": "now"}',
    '{"answer": 4}',
    '{"name": "now", "parameters": {"a":}}',
    '{"name": "now", "param',
    'I would call {"name": "now", "parameters": {}}',
    '{"name": "now", "parameters": {}} and then?',
)
MISTRAL_LIST = (
    "plain text",
    '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
    '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris", "days": 3}}]',
    '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": "weather", "arguments": {"city": "[TOOL_CALLS] ]"}}]',
    'Let me look.[TOOL_CALLS] [{"arguments": {"city": "é"}, "name": "weather"}]',
    '[TOOL_CALLS] {"name": "now", "arguments": {}}',
    '[TOOL_CALLS] [{"name": "unknown", "arguments": {"a": 1}}]',
    '[TOOL_CALLS] [{"name": "now"}]',
    '[TOOL_CALLS] [{"name": "now", "arguments": {}}',
)
MISTRAL_NAMED = (
    "[TOOL_CALLS]now{}",
    "[TOOL_CALLS]now[ARGS]{}",
    '[TOOL_CALLS]weather[ARGS]{"city": "Paris", "days": 3}',
    '[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "A"}',
    'Let me look.[TOOL_CALLS]weather{"city": "é"}',
    '[TOOL_CALLS]unknown[ARGS]{"a": {"b": [1]}}',
    "[TOOL_CALLS]now[ARGS][1]",
    '[TOOL_CALLS]write[ARGS]{"text": "[TOOL_CALLS]"}',
    "[THINK]Hm.[/THINK]Four.",
    '[THINK]\nHm.\n[/THINK][TOOL_CALLS]weather[ARGS]{"city": "A"}',
)


def _v3(*calls: tuple[str, str]) -> str:
    written = (f"{DS_CALL}function{DS_SEP}{name}\n```json\n{json_}\n```{DS_CALL_END}" for name, json_ in calls)
    return DS_CALLS + "\n".join(written) + DS_CALLS_END


def _v31(*calls: tuple[str, str]) -> str:
    written = (f"{DS_CALL}{name}{DS_SEP}{json_}{DS_CALL_END}" for name, json_ in calls)
    return DS_CALLS + "".join(written) + DS_CALLS_END


DEEPSEEK_V3 = (
    "plain text",
    _v3(("now", "{}")),
    "Let me look." + _v3(("weather", '{"city": "é", "days": 3}')),
    _v3(("now", "{}"), ("unknown", '{"a": [1]}')),
    _v3(("now", '{"a":')),
    _v3(("now", "[1]")),
    f'{DS_CALLS}{DS_CALL}function{DS_SEP}weather\n```json\n{{"city": "Par',
    "<think>\nHm.\n</think>\n\nFour.",
    "<think>\nHm.\n</think>\n\n" + _v3(("now", "{}")),
)
DEEPSEEK_V31 = (
    _v31(("now", "{}")),
    "Let me look." + _v31(("weather", '{"city": "é", "days": 3}')),
    _v31(("now", "{}"), ("unknown", '{"a": [1]}')),
    _v31(("now", "")),
    _v31(("now", "null")),
    _v31(("now", '{"a":')),
    _v31(("write", json.dumps({"text": DS_CALL_END}, ensure_ascii=False))),
    f"{DS_CALL}now{DS_SEP}{{}}{DS_CALL_END}",
)

REFERENCES: dict[str, tuple[Reference, ...]] = {
    "hermes": (Reference("hermes", "qwen3", (*THINK, "<tool_call>", "</tool_call>"), HERMES),),
    "qwen3_coder": (Reference("qwen3_coder", "qwen3", (*THINK, "<tool_call>", "</tool_call>"), QWEN3_CODER),),
    "glm": (Reference("glm45", "glm45", (*THINK, "<tool_call>", "</tool_call>"), GLM),),
    "llama3": (Reference("llama3_json", None, ("<|python_tag|>",), LLAMA3),),
    "mistral": (
        Reference("mistral", "mistral", ("[TOOL_CALLS]",), MISTRAL_LIST),
        Reference("mistral", "mistral", ("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"), MISTRAL_NAMED),
    ),
    "deepseek": (
        Reference("deepseek_v3", "deepseek_r1", DS_MARKS, DEEPSEEK_V3),
        Reference("deepseek_v31", "deepseek_r1", DS_MARKS, DEEPSEEK_V31),
    ),
}


def references(family: str) -> dict[str, Any]:
    """vLLM's reading of a family's samples: {tools, samples: [{text, content, reasoning, calls: [{name, arguments}]}]}.

    The reasoning parser reads a text first if it ends reasoning, as vLLM has it read the text of a thinking model.
    """
    samples = [reading(reference, text) for reference in REFERENCES[family] for text in reference.samples]
    return {"tools": TOOLS, "samples": samples}


def reading(reference: Reference, text: str) -> dict[str, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    request = ChatCompletionRequest(
        model="m", messages=[{"role": "user", "content": "a"}], tools=TOOLS, tool_choice="auto"
    )
    tokenizer = Marks(reference.marks)
    reasoning, answer = None, text
    if reference.reasoning_parser and any(end in text for end in ("</think>", "[/THINK]")):
        thinker = ReasoningParserManager.get_reasoning_parser(reference.reasoning_parser)(tokenizer)
        reasoning, answer = thinker.extract_reasoning(text, request)
    parser = ToolParserManager.get_tool_parser(reference.tool_parser)(tokenizer, request.tools)
    found = parser.extract_tool_calls(answer or "", request)
    calls = [{"name": call.function.name, "arguments": call.function.arguments} for call in found.tool_calls]
    return {"text": text, "content": found.content, "reasoning": reasoning, "calls": calls}


def main(families: Sequence[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for family in families or REFERENCES:
        path = FOLDER / f"{family}.json"
        path.write_text(json.dumps(references(family), ensure_ascii=False, indent=1) + "\n")
        print(f"{path.name}: {len(references(family)['samples'])} samples")


if __name__ == "__main__":
    main(sys.argv[1:])
