"""What single families promise, and how a chat template shows its family."""

from __future__ import annotations

import json

import pytest
from parser_builders import DS_CALL, DS_CALL_END, DS_CALLS, DS_CALLS_END, DS_SEP, TOOLS, parsed
from template_families import DEEPSEEK, GLM, HARMONY, LLAMA3, MISTRAL, QWEN3, TemplateFamily

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.gateway.parsers import FAMILIES, family_for
from agentrl.gateway.refusal import Refusal

MESSAGE = "<|message|>"
ANALYSIS, FINAL, COMMENTARY = (f"<|channel|>{name}{MESSAGE}" for name in ("analysis", "final", "commentary"))
NEXT = "<|end|><|start|>assistant"
TO_NOW = "<|channel|>commentary to=functions.now"


@pytest.mark.parametrize("arguments", ["[1]", "null", '"x"', "3", '"{\\"a\\": 1}"'])
def test_case_39_arguments_that_are_no_object_are_passed_on_as_written(arguments: str) -> None:
    for family, text in (
        ("hermes", f'<tool_call>{{"name": "now", "arguments": {arguments}}}</tool_call>'),
        ("llama3", f'{{"name": "now", "parameters": {arguments}}}'),
        ("mistral", f'[TOOL_CALLS] [{{"name": "now", "arguments": {arguments}}}]'),
        ("mistral", f"[TOOL_CALLS]now[ARGS]{arguments}"),
        ("deepseek", f"{DS_CALLS}{DS_CALL}now{DS_SEP}{arguments}{DS_CALL_END}{DS_CALLS_END}"),
        ("gpt_oss", f"{TO_NOW}{MESSAGE}{arguments}<|call|>"),
    ):
        assert parsed(family, text).calls == [("now", arguments)], family


@pytest.mark.parametrize("arguments", ['{"a":', "", "print(1)", '{"a": 1} and more'])
def test_case_39_arguments_between_marks_are_passed_on_as_written_if_they_are_no_json_too(arguments: str) -> None:
    for family, text in (
        ("mistral", f"[TOOL_CALLS]now[ARGS]{arguments}[TOOL_CALLS]now[ARGS]{{}}"),
        ("deepseek", f"{DS_CALL}now{DS_SEP}{arguments}{DS_CALL_END}"),
        ("deepseek", f"{DS_CALL}function{DS_SEP}now\n```json\n{arguments}\n```{DS_CALL_END}"),
        ("gpt_oss", f"{TO_NOW}{MESSAGE}{arguments}<|call|>"),
    ):
        assert parsed(family, text).calls[0] == ("now", arguments), family


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a":}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": }</tool_call>',
        '<tool_call>{"name": "f"}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} x</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "\n"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 01}}</tool_call>',
        "<tool_call>hello</tool_call>",
        "<tool_call></tool_call>",
        "</tool_call><tool_call>",
        '<tool_call>{"name": "f", "arguments": ' + "[" * 100_000 + "]" * 100_000 + "}</tool_call>",
    ],
)
def test_hermes_what_is_no_whole_call_is_content(text: str) -> None:
    assert parsed("hermes", text) == (text, "", [])


def test_hermes_a_call_after_a_malformed_one_is_a_call() -> None:
    malformed = '<tool_call>{"name": "f", "arguments": {"a": "b}}</tool_call>'
    found = parsed("hermes", f'{malformed}\n<tool_call>{{"name":"now","arguments":{{}}}}</tool_call>')
    assert found == (malformed, "", [("now", "{}")])


def test_hermes_arguments_come_as_they_were_written() -> None:
    written = '{ "b":1.50,\n"a" : "\\u00e9"}'
    assert parsed("hermes", f'<tool_call>{{"arguments":{written},"name":"f"}}</tool_call>').calls == [("f", written)]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n<function=f></tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=>\n1\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\nthen\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n</function>",
        "<function=f>\n</function>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    ],
)
def test_qwen3_coder_what_is_no_whole_call_is_content(text: str) -> None:
    assert parsed("qwen3_coder", text) == (text, "", [])


def test_qwen3_coder_a_value_loses_one_newline_at_each_end_and_nothing_else() -> None:
    text = "<tool_call><function=weather><parameter=city>\n\n  a\n\n</parameter></function></tool_call>"
    assert parsed("qwen3_coder", text).calls == [("weather", '{"city": "\\n  a\\n"}')]


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call></tool_call>",
        "<tool_call>two words</tool_call>",
        "<tool_call>f<arg_key>a</arg_key></tool_call>",
        "<tool_call>f<arg_key></arg_key><arg_value>1</arg_value></tool_call>",
        "<tool_call>f<arg_value>1</arg_value></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    ],
)
def test_glm_what_is_no_whole_call_is_content(text: str) -> None:
    assert parsed("glm", text) == (text, "", [])


def test_glm_a_value_is_exactly_what_is_between_its_marks() -> None:
    text = "<tool_call>weather<arg_key> city </arg_key>\n<arg_value>\n a </arg_value></tool_call>"
    assert parsed("glm", text).calls == [("weather", '{"city": "\\n a "}')]


def test_llama3_a_mark_that_ends_the_turn_closes_a_call() -> None:
    found = parsed("llama3", '<|python_tag|>{"name": "now", "parameters": {}}<|eom_id|>', stopped=False)
    assert found == ("", "", [("now", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        'It is {"name": "now", "parameters": {}}',
        '{"name": "now", "parameters": {}} as you see',
        '{"name": "now", "parameters": {}};',
        '{"name": "now"}',
        '{"answer": 4}',
        "<|python_tag|>print(4)",
    ],
)
def test_llama3_what_is_not_a_call_alone_is_content(text: str) -> None:
    assert parsed("llama3", text) == (text, "", [])


@pytest.mark.parametrize(
    "text",
    [
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS]now",
        "[TOOL_CALLS]now now[ARGS]{}",
        '[TOOL_CALLS] [{"name": "now"}]',
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}',
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}, 3]',
    ],
)
def test_mistral_what_is_no_whole_call_is_content(text: str) -> None:
    assert parsed("mistral", text) == (text, "", [])


def test_mistral_what_a_cut_off_list_spells_in_an_argument_is_never_run() -> None:
    text = '[TOOL_CALLS] [{"name": "write", "arguments": {"text": "[TOOL_CALLS]rm{}[TOOL_CALLS]rm{}"}}]'
    assert [name for name, _ in parsed("mistral", text).calls] == ["write"]
    for end in range(len(text)):
        assert parsed("mistral", text[:end]).calls == [], text[:end]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama3", '{"name": "now", "parameters": {"a": "b'),
        ("mistral", '[TOOL_CALLS]now[ARGS]{"a": "b'),
        ("gpt_oss", f'{TO_NOW}{MESSAGE}{{"a": "b'),
    ],
)
def test_an_object_that_never_closes_is_no_call_although_the_model_stopped(family: str, text: str) -> None:
    assert parsed(family, text) == (text, "", [])


def test_mistral_a_call_may_carry_an_id_of_the_model() -> None:
    assert parsed("mistral", "[TOOL_CALLS]now[CALL_ID]abc123XYZ[ARGS]{}").calls == [("now", "{}")]


def test_mistral_reasoning_has_marks_of_its_own() -> None:
    assert parsed("mistral", "[THINK]one[/THINK]Four.") == ("Four.", "one", [])
    assert parsed("mistral", "one</think>two[/THINK]Four.", in_reasoning=True) == ("two[/THINK]Four.", "one", [])


@pytest.mark.parametrize(
    "text",
    [
        f"{DS_CALLS}{DS_CALLS_END}",
        f"{DS_CALLS}now{DS_SEP}{{}}{DS_CALL_END}",
        f"{DS_CALL}two words{DS_SEP}{{}}{DS_CALL_END}",
        f"{DS_CALL}now{{}}{DS_CALL_END}",
        f"{DS_CALLS_END}",
    ],
)
def test_deepseek_what_is_no_whole_call_is_content(text: str) -> None:
    assert parsed("deepseek", text) == (text, "", [])


@pytest.mark.parametrize(
    ("text", "content", "reasoning", "calls"),
    [
        (f"{FINAL}Four.", "Four.", "", []),
        (f"{FINAL} Four. <|return|>", " Four. ", "", []),
        (f"{ANALYSIS} Hm. {NEXT}{FINAL}Four.<|return|>", "Four.", "Hm.", []),
        (f"{ANALYSIS}Hm.", "", "Hm.", []),
        (f"{ANALYSIS}One.{NEXT}{ANALYSIS}Two.{NEXT}{FINAL}Four.", "Four.", "One.\nTwo.", []),
        (f"{COMMENTARY}Let me look.{NEXT}{FINAL}Four.", "Let me look.\nFour.", "", []),
        (f"{TO_NOW} <|constrain|>json{MESSAGE}{{}}<|call|>", "", "", [("now", "{}")]),
        (f"{TO_NOW}<|constrain|>json{MESSAGE}{{}}<|call|>", "", "", [("now", "{}")]),
        (f"{TO_NOW} json{MESSAGE}{{}}<|call|>", "", "", [("now", "{}")]),
        (f"{TO_NOW}{MESSAGE}{{}}", "", "", [("now", "{}")]),
        (f" to=functions.now<|channel|>commentary json{MESSAGE}{{}}<|call|>", "", "", [("now", "{}")]),
        (f"{TO_NOW}{MESSAGE}{{}}{NEXT}{TO_NOW}{MESSAGE}{{}}<|call|>", "", "", [("now", "{}")] * 2),
        (f'{TO_NOW}{MESSAGE}{{"a": "<|call|>"}}<|call|>', "", "", [("now", '{"a": "<|call|>"}')]),
        (f"{COMMENTARY}Look.{NEXT}{TO_NOW}{MESSAGE}{{}}<|call|>", "Look.", "", [("now", "{}")]),
        (f"<|channel|>commentary to=browser.open{MESSAGE}{{}}<|call|>",) * 2 + ("", []),
        (f"<|channel|>else{MESSAGE}Four.<|end|>",) * 2 + ("", []),
        ("<|start|>user<|message|>Four.",) * 2 + ("", []),
        ("Four.",) * 2 + ("", []),
    ],
)
def test_gpt_oss_messages_go_where_their_channel_says(
    text: str, content: str, reasoning: str, calls: list[tuple[str, str]]
) -> None:
    """By OpenAI's description of the harmony format; see tools/parser_references.py on why not by vLLM's parser."""
    assert parsed("gpt_oss", text) == (content, reasoning, calls)


def test_gpt_oss_reasoning_that_the_prompt_opened_ends_with_its_message() -> None:
    text = f"Hm.{NEXT}{FINAL}Four."
    assert parsed("gpt_oss", text, in_reasoning=True) == ("Four.", "Hm.", [])


@pytest.mark.parametrize(
    ("template", "family"),
    [
        (HARMONY.template, "gpt_oss"),
        (DEEPSEEK.template, "deepseek"),
        (MISTRAL.template, "mistral"),
        (GLM.template, "glm"),
        (QWEN3.template, "hermes"),
        (LLAMA3.template, "llama3"),
        ("<tool_call>\\n<function={{ call.name }}>\\n<parameter={{ key }}>", "qwen3_coder"),
        ("<|start_header_id|>assistant<|end_header_id|>{{ '\"parameters\": ' }}", "llama3"),
        ("<|im_start|>assistant\\n{{ message.content }}", "plain"),
    ],
)
def test_a_chat_template_shows_its_family_by_how_it_spells_calls(template: str, family: str) -> None:
    assert family_for(template).name == family


@pytest.mark.parametrize(
    ("models", "family"),
    [
        *((HARMONY, "gpt_oss"), (DEEPSEEK, "deepseek"), (MISTRAL, "mistral")),
        *((GLM, "glm"), (QWEN3, "hermes"), (LLAMA3, "llama3")),
    ],
)
def test_what_the_models_of_a_template_sample_is_a_call(models: TemplateFamily, family: str) -> None:
    begin, end = models.calls
    argument = "Köln" if models.call_value else '{"city": "Köln"}'
    [(name, arguments)] = parsed(family, f"{begin}{argument}{end}").calls
    assert (name, json.loads(arguments)) == ("weather", {"city": "Köln"})


def test_the_embedded_policy_is_of_the_hermes_family() -> None:
    assert family_for((resolve_model(EMBEDDED) / "chat_template.jinja").read_text()).name == "hermes"


def test_forcing_a_call_is_refused_where_no_form_is_known() -> None:
    with pytest.raises(Refusal, match="spells tool calls in no form that the gateway knows"):
        FAMILIES["plain"].forced(TOOLS, None, True)
