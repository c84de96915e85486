"""OpenAI chat completions (`POST /v1/chat/completions`), not streaming.

Fields that cannot change an answer (`user`, `metadata`, …) are taken and ignored. `strict` in a tool is taken and not
enforced. What is not supported gets a 400 that names it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import orjson
from msgspec import UNSET, Struct, UnsetType

from agentrl.gateway.dialects.base import Answering, Dialect
from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.turns import TurnRequest
from agentrl.types import Call


class TextPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(Struct, forbid_unknown_fields=True, tag_field="type", tag="refusal"):
    refusal: str


class FunctionCall(Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


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


ChatMessage = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class Function(Struct, forbid_unknown_fields=True):
    name: str
    description: str | UnsetType | None = UNSET
    parameters: dict[str, Any] | UnsetType | None = UNSET
    strict: bool | UnsetType | None = UNSET


class Tool(Struct, forbid_unknown_fields=True):
    type: Literal["function"]
    function: Function


class StreamOptions(Struct):
    include_usage: bool | None = None


class ChatRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    messages: list[ChatMessage]
    model: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, float] | None = None
    # no effect on an answer
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


_decoder = msgspec.json.Decoder(ChatRequest)


def decode(body: bytes) -> tuple[TurnRequest, ChatRequest]:
    request = decode_body(_decoder, body)
    _refuse_unsupported(request)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop
    sampling = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "max_tokens": request.max_completion_tokens
        if request.max_completion_tokens is not None
        else request.max_tokens,
        "stop": [text for text in stop if text] if stop else None,
        "seed": request.seed,
    }
    turn = TurnRequest(
        messages=msgspec.to_builtins(request.messages),
        tools=msgspec.to_builtins(request.tools) if request.tools else None,
        parse_tools=bool(request.tools) and request.tool_choice != "none",
        sampling=sampling,
        num_bytes=len(body),
    )
    return turn, request


def _refuse_unsupported(request: ChatRequest) -> None:
    reject(not request.messages, "messages", "there is none")
    reject(bool(request.stream), "stream", "streaming is not supported; leave it out")
    reject(request.n not in (None, 1), "n", f"{request.n} answers were asked for; send one request for each")
    reject(
        request.tool_choice not in (None, "none", "auto"),
        "tool_choice",
        f"{request.tool_choice!r} would have to constrain sampling; 'auto' and 'none' are supported",
    )
    reject(request.parallel_tool_calls is False, "parallel_tool_calls", "false would have to constrain sampling")
    reject(bool(request.top_logprobs), "top_logprobs", "only the sampled token's logprob is known; send 0")
    reject(bool(request.logit_bias), "logit_bias", "it is not supported")
    kind = (request.response_format or {}).get("type", "text")
    reject(kind != "text", "response_format", f"{kind!r} would have to constrain sampling; 'text' is supported")


def encode(call: Call, request: ChatRequest, answering: Answering) -> bytes:
    finish_reason: str = call.finish_reason
    if finish_reason == "stop" and call.message.get("tool_calls"):
        finish_reason = "tool_calls"
    prompt, sampled = len(call.prompt_token_ids), len(call.token_ids)
    answer = {
        "id": call.call_id,
        "object": "chat.completion",
        "created": int(call.ended_at),
        "model": answering.model_name,
        "choices": [
            {
                "index": 0,
                "message": {"refusal": None, **call.message},
                "logprobs": _logprobs(call, answering) if request.logprobs else None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled},
    }
    return orjson.dumps(answer)


def _logprobs(call: Call, answering: Answering) -> dict[str, Any] | None:
    """One entry per sampled token, the one that ended the turn included. Part of a character has bytes, no text."""
    if call.logprobs is None:
        return None
    content = []
    for token_id, logprob in zip(call.token_ids, call.logprobs, strict=True):
        data = answering.token_bytes(token_id)
        content.append({"token": _token_text(data), "logprob": logprob, "bytes": list(data), "top_logprobs": []})
    return {"content": content, "refusal": None}


def _token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


CHAT: Dialect[ChatRequest] = Dialect(
    name="chat",
    path="/chat/completions",
    call_prefix="chatcmpl-",
    decode=decode,
    encode=encode,
    error=openai_error,
)
