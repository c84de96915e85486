"""Anthropic's blocks as chat messages in OpenAI form.

Consecutive messages of one side are one turn, as the API has it. An assistant's texts are pieces of one text and are
joined as they are, so that our own answers sent back are canonically the messages that were given out. Texts of a user,
of the system prompt and of a tool's result are things beside each other and are joined with a line break. The results
of a turn come before its text. A system message between the others becomes user text in `<system-reminder>` tags: most
chat templates take system text at the start only, or move it there and so rewrite the history.

`is_error` is written as "Error: " before the result. Redacted thinking cannot be read and is left out. Signatures are
not checked: thinking that was edited makes another conversation, which is found by its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from agentrl.gateway.deltas import Content, Delta, Reasoning, ToolCall, message_of
from agentrl.gateway.dialects.decode import reject
from agentrl.gateway.dialects.messages_input import arguments_of
from agentrl.gateway.dialects.messages_request import (
    AssistantMessage,
    Message,
    PromptFields,
    SystemMessage,
    TextBlock,
    ThinkingBlock,
    ThinkingDisabled,
    ThinkingEnabled,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    UserMessage,
    choice_of,
)
from agentrl.gateway.refusal import invalid
from agentrl.gateway.request import Conversation

PSEUDO_HEADER = re.compile(r"\A(?:x-anthropic-[\w-]+:[^\n]*(?:\n|\Z))+")
"""Accounting that Claude Code writes at the head of its system prompt, with a hash that differs in every request: it is
not for the model, and would make every call a conversation of its own."""

EFFORTS = {"xhigh": "high", "max": "high"}
"""The levels that templates with a `reasoning_effort` do not have."""


def conversation(request: PromptFields, *, answered: bool = True) -> Conversation:
    """The request's prompt. `answered`: the model is to answer it, which it cannot where its own words come last.

    Raises Refusal (400) naming the field.
    """
    messages = request.messages
    last = f"messages[{len(messages) - 1}]"
    why = "the last message is the assistant's, and prefilled answers are not supported; end with a user message"
    reject(answered and isinstance(messages[-1], AssistantMessage), last, why)
    head = next((i for i, message in enumerate(messages) if not isinstance(message, SystemMessage)), len(messages))
    system = _lines(
        [
            _system(request.system),
            *(_system(message.content) for message in messages[:head] if isinstance(message, SystemMessage)),
        ]
    )
    choice, parallel = choice_of(request)
    try:
        turns = list(_turns(messages[head:]))
    except RecursionError as error:
        raise invalid("messages", "messages: the input of a tool_use is nested too deep to be written") from error
    return Conversation(
        messages=[*([{"role": "system", "content": system}] if system else []), *turns],
        tools=[_function(tool) for tool in request.tools] if request.tools else None,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        template_kwargs=_template_kwargs(request),
    )


def _template_kwargs(request: PromptFields) -> dict[str, Any]:
    kwargs: dict[str, Any] = {}
    if isinstance(request.thinking, ThinkingEnabled | ThinkingDisabled):
        kwargs["enable_thinking"] = isinstance(request.thinking, ThinkingEnabled)
    if request.output_config and (effort := request.output_config.effort):
        kwargs["reasoning_effort"] = EFFORTS.get(effort, effort)
    return kwargs


def _function(tool: Tool) -> dict[str, Any]:
    """Examples go where JSON schema has them."""
    parameters = tool.input_schema
    if tool.input_examples:
        parameters = {**parameters, "examples": tool.input_examples}
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": parameters}}


def _turns(messages: Sequence[Message]) -> Iterator[dict[str, Any]]:
    for by_assistant, turn in groupby(messages, lambda message: isinstance(message, AssistantMessage)):
        if by_assistant:
            yield message_of(delta for message in turn for delta in _deltas(message.content))
        else:
            yield from _user_turn(message for message in turn if not isinstance(message, AssistantMessage))


def _deltas(content: str | Sequence[Any]) -> Iterator[Delta]:
    if isinstance(content, str):
        yield Content(content)
        return
    for block in content:
        if isinstance(block, TextBlock):
            yield Content(block.text)
        elif isinstance(block, ToolUseBlock):
            yield ToolCall(block.id, block.name, arguments_of(block.input))
        elif isinstance(block, ThinkingBlock) and block.thinking:
            yield Reasoning(block.thinking)


def _user_turn(turn: Iterable[UserMessage | SystemMessage]) -> Iterator[dict[str, Any]]:
    texts = []
    num_results = 0
    for message in turn:
        if isinstance(message, SystemMessage):
            texts.append(f"<system-reminder>\n{_joined(message.content)}\n</system-reminder>")
        elif isinstance(message.content, str):
            texts.append(message.content)
        else:
            for block in message.content:
                if isinstance(block, ToolResultBlock):
                    num_results += 1
                    yield {"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block)}
                else:
                    texts.append(block.text)
    if texts or not num_results:
        yield {"role": "user", "content": "\n".join(texts)}


def _result(block: ToolResultBlock) -> str:
    text = _joined(block.content or "")
    return f"Error: {text}" if block.is_error else text


def _system(content: str | Sequence[TextBlock] | None) -> str:
    texts = [content] if isinstance(content, str) else [block.text for block in content or []]
    return _lines(PSEUDO_HEADER.sub("", text) for text in texts)


def _joined(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _lines(texts: Iterable[str]) -> str:
    return "\n".join(text for text in texts if text)
