"""A request of the Responses API in the terms of the core.

Fields that cannot change an answer are taken and ignored; what is not supported gets a 400 that names it.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentrl.gateway.dialects.constraints import json_constraint
from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.dialects.responses_items import messages_of
from agentrl.gateway.refusal import invalid
from agentrl.gateway.request import Conversation, NamedTool, ToolChoice, TurnRequest
from agentrl.types import Constraint

LOGPROBS = "message.output_text.logprobs"
MAX_TOP_LOGPROBS = 20
"""The API's own bound."""


class FunctionTool(Struct, forbid_unknown_fields=True, tag_field="type", tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # not enforced, and not shown to the model
    output_schema: dict[str, Any] | None = None
    allowed_callers: list[Literal["direct"]] | None = None
    defer_loading: Literal[False] | None = None
    is_async: Literal[False] | None = msgspec.field(default=None, name="async")


class FunctionChoice(Struct, forbid_unknown_fields=True, tag_field="type", tag="function"):
    name: str


class TextFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="text"):
    pass


class JsonObjectFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_object"):
    pass


class JsonSchemaFormat(Struct, forbid_unknown_fields=True, tag_field="type", tag="json_schema"):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct, forbid_unknown_fields=True):
    format: TextFormat | JsonObjectFormat | JsonSchemaFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # a hint that no template has a place for


class ReasoningConfig(Struct, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class ResponsesRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    input: str | list[dict[str, Any]] = []  # items, typed in `responses_items`: a message's type may be left out
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    stream: bool | None = None
    # supported as far as they ask for nothing
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    conversation: Any = None
    prompt: Any = None
    context_management: list[Any] | None = None
    moderation: Any = None
    prompt_cache_options: dict[str, Any] | None = None
    # no effect on an answer
    max_tool_calls: int | None = None  # of built-in tools, of which there are none
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())


class Asked(Struct, frozen=True):
    """A request with what its responses repeat of it, encoded once. Made by `decode`, taken by the encoders."""

    request: ResponsesRequest
    tools: msgspec.Raw
    text: msgspec.Raw


_decoder = msgspec.json.Decoder(ResponsesRequest)


def decode(body: bytes) -> tuple[TurnRequest, Asked]:
    request = decode_body(_decoder, body)
    _refuse_unsupported(request)
    if isinstance(request.input, str):
        messages = [{"role": "user", "content": request.input}]
    else:
        messages = messages_of(request.input)
    if not messages:
        raise invalid("input", "input: there is nothing to answer; send a text or items")
    conversation = Conversation(
        messages=messages,
        tools=[_chat_tool(tool) for tool in request.tools] if request.tools else None,
        tool_choice=_tool_choice(request),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        instructions=request.instructions,
        after=request.previous_response_id,
        template_kwargs=_template_kwargs(request.reasoning),
    )
    sampling = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "max_tokens": request.max_output_tokens,
        "top_logprobs": request.top_logprobs if request.wants_logprobs else None,
        "constraint": _constraint(request.text),
    }
    turn = TurnRequest(prompts=[conversation], stream=request.stream is True, sampling=sampling, num_bytes=len(body))
    return turn, _asked(request)


def _asked(request: ResponsesRequest) -> Asked:
    """The settings as the API repeats them, with its defaults."""
    config = request.text or TextConfig()
    text = {"format": config.format or TextFormat(), "verbosity": config.verbosity or "medium"}
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
        for tool in request.tools or ()
    ]
    try:
        return Asked(request, msgspec.Raw(msgspec.json.encode(tools)), msgspec.Raw(msgspec.json.encode(text)))
    except RecursionError as error:
        raise invalid("tools", "tools or text: a schema is nested too deep") from error


def _refuse_unsupported(request: ResponsesRequest) -> None:
    reject(bool(request.background), "background", "responses are not kept for polling; leave it out and stream")
    reject(request.truncation == "auto", "truncation", "'auto' would drop items unseen; send 'disabled'")
    reject(bool(request.conversation), "conversation", "send the items, or previous_response_id")
    reject(bool(request.prompt), "prompt", "prompt templates are not kept here; send instructions and input")
    reject(bool(request.context_management), "context_management", "it is not supported; compact in the agent")
    reject(bool(request.moderation), "moderation", "it is not supported")
    prewarm = (request.prompt_cache_options or {}).get("prewarm")
    reject(bool(prewarm), "prompt_cache_options.prewarm", "it is not supported; the prefix cache fills by itself")
    _check_range("max_output_tokens", request.max_output_tokens, 1, (1 << 31) - 1)
    _check_range("top_logprobs", request.top_logprobs, 0, MAX_TOP_LOGPROBS)


def _check_range(field: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise invalid(field, f"{field} is {value}; it must lie between {low} and {high}")


def _chat_tool(tool: FunctionTool) -> dict[str, Any]:
    """In chat completions' form, as the template shows it to the model: nothing that is null or not for its eyes."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def _tool_choice(request: ResponsesRequest) -> ToolChoice:
    names = [tool.name for tool in request.tools or ()]
    if isinstance(request.tool_choice, FunctionChoice):
        name = request.tool_choice.name
        if name not in names:
            raise invalid("tool_choice.name", f"tool_choice.name is {name!r}; tools has {names}")
        return NamedTool(name)
    if request.tool_choice == "required" and not names:
        raise invalid("tool_choice", "tool_choice is 'required', and tools has none")
    return request.tool_choice or "auto"


def _template_kwargs(reasoning: ReasoningConfig | None) -> dict[str, Any]:
    """The effort, under the names that templates know (Qwen's and GLM's; gpt-oss's)."""
    if reasoning is None or reasoning.effort is None:
        return {}
    return {"enable_thinking": False} if reasoning.effort == "none" else {"reasoning_effort": reasoning.effort}


def _constraint(text: TextConfig | None) -> Constraint | None:
    match text and text.format:
        case JsonSchemaFormat(schema=schema):
            return json_constraint("json_schema", schema, field="text.format")
        case JsonObjectFormat():
            return json_constraint("json_object", None, field="text.format")
    return None
