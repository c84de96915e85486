"""The parsers' records of vLLM, and what they force, against the installed vLLM and xgrammar."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from parser_references import FOLDER, references
from tokenizers import AddedToken
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar
from xgrammar import CompiledGrammar, GrammarCompiler, GrammarMatcher, TokenizerInfo

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.gateway.parsers import FAMILIES
from agentrl.gateway.parsers.base import ParseOptions

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "note": {"$ref": "#/$defs/Note"}},
                "required": ["a"],
                "$defs": {"Note": {"type": "string"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEP = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
MARKS = [
    *("<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", CALLS, CALLS_END, CALL, CALL_END, SEP),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<function=", "</function>", "</parameter>"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"),
]
ADD = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    "llama3": '{"name": "add", "parameters": {"a": 1}}',
    "mistral": '[TOOL_CALLS]add[ARGS]{"a": 1}',
    "deepseek": f'{CALLS}{CALL}add{SEP}{{"a": 1}}{CALL_END}{CALLS_END}',
    "gpt_oss": '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}',
}
NOW = {
    "hermes": '<tool_call>\n{"name":"now","arguments":{}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=now>\n</function>\n</tool_call>",
    "glm": "<tool_call>now\n</tool_call>",
    "llama3": '{"name": "now", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
    "deepseek": f"{CALLS}{CALL}function{SEP}now\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
    "gpt_oss": "<|channel|>commentary to=functions.now<|message|>{}",
}
TWO = {
    "hermes": f"{ADD['hermes']}\n{NOW['hermes']}",
    "qwen3_coder": f"{ADD['qwen3_coder']}\n{NOW['qwen3_coder']}",
    "glm": f"{ADD['glm']}\n{NOW['glm']}",
    "llama3": f"{ADD['llama3']}; {NOW['llama3']}",
    "mistral": f"{ADD['mistral']}[TOOL_CALLS]now{{}}",
    "deepseek": f'{CALLS}{CALL}add{SEP}{{"a": 1}}{CALL_END}{CALL}now{SEP}{{}}{CALL_END}{CALLS_END}',
}
every_family = pytest.mark.parametrize("family", sorted(ADD))
each_tokenizer = pytest.mark.parametrize("marks", ["text", "tokens", "special tokens"])


@cache
def tokenizer(marks: str) -> PreTrainedTokenizerFast:
    """The embedded policy's, in which other families' marks are plain text or tokens of their own."""
    found = AutoTokenizer.from_pretrained(str(resolve_model(EMBEDDED)))
    if marks != "text":
        special = marks == "special tokens"
        found.add_tokens(
            [AddedToken(mark, special=special, normalized=False) for mark in MARKS], special_tokens=special
        )
    return found


@cache
def compiler(marks: str) -> GrammarCompiler:
    return GrammarCompiler(TokenizerInfo.from_huggingface(tokenizer(marks), vocab_size=len(tokenizer(marks))))


@cache
def compiled(family: str, marks: str, name: str | None, parallel: bool, in_reasoning: bool) -> CompiledGrammar:
    constraint = FAMILIES[family].forced(TOOLS, name, parallel, in_reasoning)
    return compiler(marks).compile_structural_tag(constraint.value)


def allows(
    text: str, family: str, marks: str, *, name: str | None = None, parallel: bool = True, in_reasoning: bool = False
) -> bool:
    """Whether the model may sample the tokens of `text` and then end its turn."""
    matcher = GrammarMatcher(compiled(family, marks, name, parallel, in_reasoning))
    ids = [*tokenizer(marks).encode(text, add_special_tokens=False), tokenizer(marks).eos_token_id]
    return all(matcher.accept_token(number) for number in ids)


def test_the_recorded_readings_are_those_of_the_installed_vllm() -> None:
    recorded = json.loads((FOLDER / "hermes.json").read_text())
    assert references("hermes") == recorded


@every_family
@each_tokenizer
def test_a_forced_call_is_what_the_family_s_parser_reads(family: str, marks: str) -> None:
    for text, name in ((ADD[family], "add"), (NOW[family], "now")):
        assert allows(text, family, marks)
        parser = FAMILIES[family].parser(ParseOptions(tools=TOOLS))
        [call] = [*parser.feed(text), *parser.finish(stopped=True)]
        assert getattr(call, "name", None) == name


@every_family
@each_tokenizer
def test_what_is_not_the_call_that_was_asked_for_cannot_be_sampled(family: str, marks: str) -> None:
    add, now = ADD[family], NOW[family]
    assert not allows("", family, marks), "no call at all"
    assert not allows("hello", family, marks)
    assert not allows(add[:-1], family, marks), "an unfinished call"
    assert not allows(add.replace("1", "one"), family, marks), "arguments of another type"
    assert not allows(add.replace("add", "sub"), family, marks), "a tool that there is not"
    assert not allows(f"{now} and more", family, marks)
    assert not allows(now, family, marks, name="add"), "another tool than the named one"
    assert allows(add, family, marks, name="add")


@pytest.mark.parametrize("family", sorted(TWO))
@each_tokenizer
def test_several_calls_can_be_sampled_only_when_they_may_be_parallel(family: str, marks: str) -> None:
    assert allows(TWO[family], family, marks, parallel=True)
    assert not allows(TWO[family], family, marks, parallel=False)
    assert allows(ADD[family], family, marks, parallel=False)


@every_family
@each_tokenizer
def test_reasoning_may_come_first_and_must_be_ended_if_the_prompt_opened_it(family: str, marks: str) -> None:
    begin, end = ("<think>\n", "\n</think>\n\n")
    if family == "gpt_oss":
        begin, end = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    assert allows(f"{begin}let me see{end}{ADD[family]}", family, marks)
    assert allows(f"let me see{end}{ADD[family]}", family, marks, in_reasoning=True)
    assert not allows(ADD[family], family, marks, in_reasoning=True)
    assert not allows(f"{begin}let me see{end}", family, marks)


@every_family
def test_vllm_takes_what_is_forced(family: str) -> None:
    value: Any = FAMILIES[family].forced(TOOLS, None, True).value
    validate_xgrammar_grammar(SamplingParams(structured_outputs=StructuredOutputsParams(structural_tag=value)))


def test_the_recorded_readings_are_where_the_tests_look_for_them() -> None:
    here = Path(__file__).resolve().parent.parent / "gateway" / "fixtures" / "parsers"
    assert here == FOLDER
