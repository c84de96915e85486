"""Invariant 13 for a finished session, told by transformers' own rendering of harmless text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from template_families import TemplateFamily, tokenizer_of
from tree_agent import Given
from tree_builders import Finished, prompts_of

MARK = "zqwhereitends"
ENDS = {
    "llama3": ["<|eot_id|>"],
    "mistral": ["</s>"],
    "qwen3": ["<|im_end|>"],
    "deepseek_r1": ["<｜end▁of▁sentence｜>"],
    "glm45": ["<|user|>", "<|observation|>"],
    "harmony": ["<|return|>", "<|end|>", "<|call|>"],
}
"""Marks that stand where the template ends an answer. GLM's belong to the next turn."""


def check_controls(done: Finished) -> None:
    """Invariant 13: a prompt has the control tokens that the template writes for harmless text, and no other.

    Either all of it is the template's, or it is an earlier prompt, its answer and what the template writes behind that.
    """
    prompts = prompts_of(done)
    for call_id, given in done.agent.given.items():
        prompt, family = prompts[call_id], done.family
        allowed = _spelled_by_answers(family, given.messages)
        expected = family.controls_in(family.ids(_harmless(family, given.messages, given.tools)))
        if _without(family.controls_in(prompt), allowed) == _without(expected, allowed):
            continue
        assert done.plan.history == "append", f"{call_id} has other control tokens than the template writes"
        found = [
            _is_templates_own(family, parent, given, prompt[held:], allowed)
            for parent, held in _parents(done, given, prompts)
        ]
        assert any(found), f"{call_id} has other control tokens than the template writes behind an earlier answer"


def _is_templates_own(
    family: TemplateFamily, parent: Given, given: Given, added: Sequence[int], allowed: set[int]
) -> bool:
    """Whether `added` has the control tokens that stand behind the parent's answer, the one that ended it not again."""
    at, messages = len(parent.messages), given.messages
    marked = [*messages[:at], _marked(messages[at]), *messages[at + 1 :]]
    tail = _harmless(family, marked, given.tools).rpartition(MARK)[2]
    closing = _harmless(family, marked[: at + 1], given.tools, prompt=False).rpartition(MARK)[2]
    expected = _without(family.controls_in(family.ids(tail)), allowed)
    there = _without(family.controls_in(added), allowed)
    missing = len(expected) - len(there)
    if missing < 0 or there != expected[missing:]:
        return False
    num_closing = len(_without(family.controls_in(family.ids(closing)), allowed)) + (family.name == "glm45")
    if parent.token_ids and parent.token_ids[-1] in {family.id(mark) for mark in ENDS[family.name]}:
        return missing == num_closing
    return missing <= max(0, num_closing - 1)


def _parents(done: Finished, given: Given, prompts: Mapping[str, list[int]]) -> Iterator[tuple[Given, int]]:
    """The answers whose prompt and ids this prompt begins with, by chance too, and how many ids those are."""
    prompt = prompts[given.call_id]
    for other in done.agent.given.values():
        at = len(other.messages)
        whole = prompts[other.call_id] + other.token_ids
        goes_on = at < len(given.messages) and given.messages[at]["role"] == "assistant"
        if goes_on and prompt[: len(whole)] == whole:
            yield other, len(whole)


def _marked(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with a mark as the last thing in it."""
    if not message.get("tool_calls"):
        return {"role": "assistant", "content": MARK}
    calls = [*message["tool_calls"]]
    function = {"name": calls[-1]["function"]["name"], "arguments": json.dumps({"a": MARK})}
    return {**message, "tool_calls": [*calls[:-1], {**calls[-1], "function": function}]}


def _spelled_by_answers(family: TemplateFamily, messages: Sequence[Mapping[str, Any]]) -> set[int]:
    """Marks that may stand in an assistant's own text as themselves, for templates look for them there."""
    text = json.dumps([m for m in messages if m["role"] == "assistant"], ensure_ascii=False)
    return {family.id(mark) for mark in family.marks if mark in text and mark not in ("<｜User｜>", "<｜Assistant｜>")}


def _without(token_ids: Sequence[int], allowed: set[int]) -> list[int]:
    return [token_id for token_id in token_ids if token_id not in allowed]


def _harmless(family: TemplateFamily, messages: Sequence[Mapping[str, Any]], tools: Any, *, prompt: bool = True) -> str:
    """The conversation as the template writes it when no text in it spells a control token."""
    clean = [_clean_message(family, message) for message in messages]
    tools = _clean(family, tools, keep_marks=False)
    return str(
        tokenizer_of(family).apply_chat_template(clean, tools=tools, add_generation_prompt=prompt, tokenize=False)
    )


def _clean_message(family: TemplateFamily, message: Mapping[str, Any]) -> dict[str, Any]:
    is_answer = message["role"] == "assistant"
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content)
    found: dict[str, Any] = {"role": message["role"], "content": _clean(family, content or "", keep_marks=is_answer)}
    calls = message.get("tool_calls")
    if (thoughts := message.get("reasoning_content")) and not (calls and content and family.name == "harmony"):
        found["thinking"] = found["reasoning_content"] = _clean(family, thoughts, keep_marks=True)
    if calls:
        found["tool_calls"] = [_clean_call(family, call) for call in calls]
    if "tool_call_id" in message:
        found["tool_call_id"] = message["tool_call_id"]
    return found


def _clean_call(family: TemplateFamily, call: Mapping[str, Any]) -> dict[str, Any]:
    function, arguments = call["function"], call["function"]["arguments"]
    if not family.arguments_as_text:
        try:
            value = json.loads(arguments)
            arguments = value if isinstance(value, dict) else {"arguments": arguments}
        except ValueError:
            arguments = {"arguments": arguments}
    name = _clean(family, function["name"], keep_marks=False)
    return {**call, "function": {"name": name, "arguments": _clean(family, arguments, keep_marks=False)}}


def _clean(family: TemplateFamily, value: Any, *, keep_marks: bool) -> Any:
    if isinstance(value, str):
        roles = [mark for mark in family.marks if not keep_marks or mark in ("<｜User｜>", "<｜Assistant｜>")]
        for text in sorted([*family.special, *roles], key=len, reverse=True):
            value = value.replace(text, "x")
        return value
    if isinstance(value, Mapping):
        return {
            _clean(family, key, keep_marks=keep_marks): _clean(family, item, keep_marks=keep_marks)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_clean(family, item, keep_marks=keep_marks) for item in value]
    return value
