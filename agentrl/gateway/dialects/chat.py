"""OpenAI chat completions (`POST /v1/chat/completions`): requests. Answers are in `chat_answers`.

Fields that cannot change an answer (`user`, `metadata`, …) are taken and ignored. `strict` in a tool is taken and not
enforced. What is not supported gets a 400 that names it. `chat_template_kwargs` and `return_token_ids` are vLLM's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from agentrl.gateway.dialects.base import Dialect
from agentrl.gateway.dialects.chat_answers import ChatStream, Wanted, encode
from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.sampling_fields import (
    ResponseFormat,
    SamplingFields,
    StreamOptions,
    choices_wanted,
    constraint_of,
)
from agentrl.gateway.request import Conversation, NamedTool, ToolChoice, TurnRequest


class TextPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


class FunctionCall(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str
    parsed_arguments: Any | UnsetType = UNSET  # echoed by the SDK's helpers; what they made of the arguments


class ToolCall(Struct, forbid_unknown_fields=True, omit_defaults=True):
    id: str
    function: FunctionCall
    type: Literal["function"] = "function"
    index: int | None = None


class SystemMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: str | list[TextPart]
    name: str | None = None


class DeveloperMessage(SystemMessage, tag="developer"):
    pass


class UserMessage(SystemMessage, tag="user"):
    pass


class ToolMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="tool"):
    content: str | list[TextPart]
    tool_call_id: str
    name: str | None = None


class AssistantMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    content: str | list[TextPart | RefusalPart] | None = None
    tool_calls: list[ToolCall] | None = None
    reasoning_content: str | None = None
    name: str | None = None
    refusal: str | None = None  # echoed by SDKs, always null in our answers
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None
    parsed: Any | UnsetType = UNSET  # echoed by the SDK's helpers; what they made of the content


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Struct, forbid_unknown_fields=True):
    name: str
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class Tool(Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


class FunctionName(Struct, forbid_unknown_fields=True):
    name: str


class NamedChoice(Struct, forbid_unknown_fields=True):
    function: FunctionName
    type: Literal["function"] = "function"


class ChatRequest(SamplingFields, kw_only=True, frozen=True):
    messages: list[ChatMessage]
    model: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    logit_bias: dict[str, float] | None = None
    # no effect on an answer
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None


_decoder = msgspec.json.Decoder(ChatRequest)


def decode(body: bytes) -> tuple[TurnRequest, Wanted]:
    request = decode_body(_decoder, body)
    reject(not request.messages, "messages", "there is none")
    reject(bool(request.logit_bias), "logit_bias", "it is not supported")
    reject(bool(request.top_logprobs) and not request.logprobs, "top_logprobs", "it needs logprobs: true")
    conversation = Conversation(
        messages=[_plain(message) for message in request.messages],
        tools=msgspec.to_builtins(request.tools) if request.tools else None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        template_kwargs=_template_kwargs(request),
    )
    turn = TurnRequest(
        prompts=[conversation],
        n=choices_wanted(request.n),
        stream=bool(request.stream),
        sampling=_sampling(request),
        num_bytes=len(body),
    )
    wanted = Wanted(
        logprobs=bool(request.logprobs),
        token_ids=bool(request.return_token_ids),
        usage=bool(request.stream_options and request.stream_options.include_usage),
    )
    return turn, wanted


def _plain(message: ChatMessage) -> dict[str, Any]:
    """Without what the SDK's helpers added to an answer."""
    if isinstance(message, AssistantMessage):
        message.parsed = UNSET
        for call in message.tool_calls or ():
            call.function.parsed_arguments = UNSET
    return dict(msgspec.to_builtins(message))


def _sampling(request: ChatRequest) -> dict[str, Any]:
    constraint = constraint_of(request.response_format)
    found = request.sampling(top_logprobs=request.top_logprobs, constraint=constraint, field="top_logprobs")
    if request.max_completion_tokens is not None:
        found["max_tokens"] = request.max_completion_tokens
    return found


def _tool_choice(request: ChatRequest) -> ToolChoice:
    choice = request.tool_choice or "auto"
    names = [tool.function.name for tool in request.tools or ()]
    if isinstance(choice, NamedChoice):
        name = choice.function.name
        reject(name not in names, "tool_choice", f"there is no tool {name!r}; known: {', '.join(names) or 'none'}")
        return NamedTool(name)
    reject(choice == "required" and not names, "tool_choice", "'required' needs tools, and there are none")
    return choice


def _template_kwargs(request: ChatRequest) -> dict[str, Any]:
    given = dict(request.chat_template_kwargs or {})
    for name in ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize"):
        reject(name in given, f"chat_template_kwargs.{name}", "the gateway sets it")
    if request.reasoning_effort is not None:
        given["reasoning_effort"] = request.reasoning_effort
    return given


CHAT: Dialect[Wanted] = Dialect(
    name="chat",
    path="/v1/chat/completions",
    call_prefix="chatcmpl-",
    decode=decode,
    encode=encode,
    stream=ChatStream,
    error=openai_error,
    request_type=ChatRequest,
)
