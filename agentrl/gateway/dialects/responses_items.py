"""Input items of the Responses API → chat messages.

An assistant message is several items there: its reasoning, its text, each of its calls. Consecutive ones of one
answer become one message again, so that echoed output items are the message that was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from agentrl.gateway.deltas import Content, Delta, Reasoning, ToolCall, message_of
from agentrl.gateway.dialects.decode import AT_PATH, UNKNOWN_FIELD, reject
from agentrl.gateway.refusal import Refusal, invalid

T = TypeVar("T")
Status = Literal["in_progress", "completed", "incomplete"]

RESPONSE_PREFIX = "resp_"
"""Of response ids, which the ids of output items end in; that is how items of one answer are told from another's."""


class InputText(Struct, forbid_unknown_fields=True, tag_field="type", tag="input_text"):
    text: str
    prompt_cache_breakpoint: dict[str, Any] | None = None


class OutputText(Struct, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None  # what the SDK's helpers add to an answer


class RefusalText(Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


class SummaryText(Struct, forbid_unknown_fields=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"):
    text: str


class MessageItem(Struct, forbid_unknown_fields=True, tag_field="type", tag="message"):
    role: Literal["user", "system", "developer", "assistant"]
    content: str | list[InputText | OutputText | RefusalText]
    id: str | None = None
    status: Status | None = None
    phase: str | None = None


class ReasoningItem(Struct, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    summary: list[SummaryText] = []
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None  # another model's reasoning, which nobody here can read
    id: str | None = None
    status: Status | None = None


class FunctionCallItem(Struct, forbid_unknown_fields=True, tag_field="type", tag="function_call"):
    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: Status | None = None
    caller: dict[str, Any] | None = None
    namespace: None = None
    is_async: Literal[False] | None = msgspec.field(default=None, name="async")
    parsed_arguments: Any = None  # what the SDK's helpers add to an answer


class FunctionCallOutputItem(Struct, forbid_unknown_fields=True, tag_field="type", tag="function_call_output"):
    call_id: str
    output: str | list[InputText]
    id: str | None = None
    status: Status | None = None
    name: str | None = None
    caller: dict[str, Any] | None = None
    namespace: None = None


Item = MessageItem | ReasoningItem | FunctionCallItem | FunctionCallOutputItem


class _Assistant:
    """The assistant message whose items are being read."""

    def __init__(self) -> None:
        self.deltas: list[Delta] = []
        self.owner = ""  # the response that its items say they are from

    def begins_anew(self, delta: Delta, owner: str) -> bool:
        """Whether `delta` belongs to the next message. Ids decide; without them, an answer's usual order does."""
        if owner and self.owner:
            return owner != self.owner
        return not all(isinstance(held, _MAY_FOLLOW[type(delta)]) for held in self.deltas)


_MAY_FOLLOW: dict[type[Delta], tuple[type[Delta], ...]] = {
    Reasoning: (Reasoning,),
    Content: (Reasoning,),
    ToolCall: (Reasoning, Content, ToolCall),
}


def messages_of(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Chat messages of a request's `input`. Raises Refusal naming the field."""
    messages: list[dict[str, Any]] = []
    answer = _Assistant()
    for index, raw in enumerate(items):
        path = f"input[{index}]"
        item = convert_at(raw if raw.get("type") is not None else {**raw, "type": "message"}, Item, path)
        delta = _answer_delta(item, path)
        if delta is None or answer.begins_anew(delta, _owner(item)):
            _flush(answer, messages)
            answer = _Assistant()
        if delta is None:
            messages.append(_message(item))
        elif delta != Reasoning(""):
            answer.deltas.append(delta)
            answer.owner = answer.owner or _owner(item)
    _flush(answer, messages)
    return messages


def _flush(answer: _Assistant, messages: list[dict[str, Any]]) -> None:
    if answer.deltas:
        messages.append(message_of(answer.deltas))


def _answer_delta(item: Item, path: str) -> Delta | None:
    """What an item of the assistant adds to its message; None for everybody else's."""
    match item:
        case MessageItem(role="assistant"):
            return Content(_text(item.content))
        case ReasoningItem():
            return Reasoning("".join(part.text for part in item.content or item.summary))
        case FunctionCallItem():
            _refuse_programs(item.caller, path)
            return ToolCall(item.call_id, item.name, item.arguments)
        case FunctionCallOutputItem():
            _refuse_programs(item.caller, path)
    return None


def _message(item: Item) -> dict[str, Any]:
    if isinstance(item, FunctionCallOutputItem):
        return {"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)}
    assert isinstance(item, MessageItem)
    return {"role": item.role, "content": _text(item.content)}


def _text(content: str | Sequence[InputText | OutputText | RefusalText]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _refuse_programs(caller: dict[str, Any] | None, path: str) -> None:
    kind = (caller or {}).get("type", "direct")
    reject(kind != "direct", f"{path}.caller", f"{kind!r} is not supported; only the model itself calls")


def _owner(item: Item) -> str:
    """The response that an item says it is from; "" for an id that this gateway did not make."""
    return (item.id or "").partition("_" + RESPONSE_PREFIX)[2]


def convert_at(value: Any, kind: Any, path: str) -> Any:
    """A part of a body that was decoded already, as `kind`. Raises Refusal (400) naming the field from the top."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        at = AT_PATH.search(text)
        field = f"{path}.{at[1]}" if at and at[1] else path
        if unknown := UNKNOWN_FIELD.search(text):
            field = f"{field}.{unknown[1]}"
            message = f"{field} is not supported by this gateway"
            raise Refusal(400, "unknown_parameter", message, param=field) from error
        what = text.partition(" - at ")[0]
        raise invalid(field, f"{field}: {what}; this gateway supports text, functions and reasoning") from error
    except RecursionError as error:
        raise invalid(path, f"{path} is nested too deep") from error
