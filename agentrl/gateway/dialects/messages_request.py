"""The body of an Anthropic Messages request, and what of it this gateway can do.

Decoding is strict: a field that nobody knows is refused by name. What the API has and the gateway does not do (images,
documents, server tools, containers, MCP servers, …) is refused by name too. What cannot change an answer here is taken
and ignored: caching marks, metadata, tiers, billing, routing, `strict` and `eager_input_streaming` of tools,
`budget_tokens` (no engine can hold a model to it), `thinking.display` (thinking comes whole, because the client has to
send it back). Context edits that clear old results are permissions, and the answer says that none was applied.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.request import NamedTool, ToolChoice
from agentrl.types import Constraint


class Block(Struct, forbid_unknown_fields=True, tag_field="type", kw_only=True):
    cache_control: Any = None


class TextBlock(Block, tag="text"):
    text: str
    citations: Any = None
    parsed_output: Any = None  # of the SDK's parsed messages


class ThinkingBlock(Block, tag="thinking"):
    thinking: str
    signature: str | None = None


class RedactedThinkingBlock(Block, tag="redacted_thinking"):
    data: str = ""


class DirectCaller(Struct, forbid_unknown_fields=True, tag_field="type", tag="direct"):
    """The model itself; other callers are programs of server tools."""


class ToolUseBlock(Block, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller | None = None
    toolset_name: None = None


class ToolResultBlock(Block, tag="tool_result"):
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None
    toolset_name: None = None


class UserMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="user"):
    content: str | list[TextBlock | ToolResultBlock]


class AssistantMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="assistant"):
    content: str | list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock]


class SystemMessage(Struct, forbid_unknown_fields=True, tag_field="role", tag="system"):
    content: str | list[TextBlock]


Message = UserMessage | AssistantMessage | SystemMessage


class Tool(Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    input_examples: list[dict[str, Any]] | None = None
    allowed_callers: list[str] | None = None
    defer_loading: bool | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: Any = None


class ChoiceAuto(Struct, forbid_unknown_fields=True, tag_field="type", tag="auto"):
    disable_parallel_tool_use: bool | None = None


class ChoiceAny(Struct, forbid_unknown_fields=True, tag_field="type", tag="any"):
    disable_parallel_tool_use: bool | None = None


class ChoiceTool(Struct, forbid_unknown_fields=True, tag_field="type", tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class ChoiceNone(Struct, forbid_unknown_fields=True, tag_field="type", tag="none"):
    disable_parallel_tool_use: bool | None = None


class ThinkingEnabled(Struct, forbid_unknown_fields=True, tag_field="type", tag="enabled"):
    budget_tokens: int | None = None
    display: str | None = None
    block_binding: Any = None


class ThinkingAdaptive(Struct, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    display: str | None = None
    block_binding: Any = None


class ThinkingBetweenTools(Struct, forbid_unknown_fields=True, tag_field="type", tag="between_tools"):
    pass


class ThinkingDisabled(Struct, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    pass


class JsonFormat(Struct, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonFormat | None = None
    task_budget: Any = None


class ContextManagement(Struct, forbid_unknown_fields=True):
    edits: list[dict[str, Any]] = []


class PromptFields(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a request for an answer and one for a count of its prompt have in common."""

    messages: list[Message]
    model: str | None = None
    system: str | list[TextBlock] | None = None
    tools: list[Tool] | None = None
    tool_choice: ChoiceAuto | ChoiceAny | ChoiceTool | ChoiceNone | None = None
    thinking: ThinkingEnabled | ThinkingAdaptive | ThinkingBetweenTools | ThinkingDisabled | None = None
    output_config: OutputConfig | None = None
    output_format: JsonFormat | None = None  # where it was before `output_config`
    context_management: ContextManagement | None = None
    # refused unless empty
    container: Any = None
    mcp_servers: Any = None
    compaction: Any = None
    thread: Any = None
    # without meaning here
    cache_control: Any = None
    metadata: Any = None
    service_tier: Any = None
    speed: Any = None
    inference_geo: Any = None
    diagnostics: Any = None
    context_hint: Any = None
    billing_policy: Any = None
    fallbacks: Any = None
    fallback_credit_token: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None
    betas: Any = None


class MessagesRequest(PromptFields, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None

    @property
    def constraint(self) -> Constraint | None:
        """What the answer is kept to. `output_config.format` goes before `output_format`."""
        asked = (self.output_config and self.output_config.format) or self.output_format
        return Constraint(kind="json", value=asked.schema) if asked else None


class CountRequest(PromptFields, kw_only=True):
    pass


MESSAGES_DECODER = msgspec.json.Decoder(MessagesRequest)
COUNT_DECODER = msgspec.json.Decoder(CountRequest)


def decoded_messages(body: bytes) -> MessagesRequest:
    """Raises Refusal (400) naming the field."""
    request = decode_body(MESSAGES_DECODER, body)
    _refuse_unsupported(request)
    for position, text in enumerate(request.stop_sequences or []):
        reject(text == "", f"stop_sequences[{position}]", "it is empty, which no text ends with; leave it out")
    return request


def decoded_count(body: bytes) -> CountRequest:
    """Raises Refusal (400) naming the field."""
    request = decode_body(COUNT_DECODER, body)
    _refuse_unsupported(request)
    return request


def choice_of(request: PromptFields) -> tuple[ToolChoice, bool]:
    """Which tool has to be called, and whether several may be. Raises Refusal for a tool that there is not."""
    choice = request.tool_choice
    names = [tool.name for tool in request.tools or []]
    parallel = not (choice and choice.disable_parallel_tool_use)
    if isinstance(choice, ChoiceTool):
        known = ", ".join(names) or "none"
        reject(choice.name not in names, "tool_choice.name", f"there is no tool {choice.name!r}; tools: {known}")
        return NamedTool(choice.name), parallel
    if isinstance(choice, ChoiceAny):
        reject(not names, "tool_choice", "a call was asked for and there are no tools; send tools or leave it out")
        return "required", parallel
    return ("none" if isinstance(choice, ChoiceNone) else "auto"), parallel


def _refuse_unsupported(request: PromptFields) -> None:
    reject(not request.messages, "messages", "there is none; send at least one user message")
    reject(bool(request.container), "container", "programs do not run here; leave it out")
    reject(bool(request.mcp_servers), "mcp_servers", "the gateway calls no servers; give their tools as tools")
    reject(bool(request.compaction), "compaction", "the gateway rewrites no history; compact it in the client")
    if request.thread:
        why = "thread: conversations are not kept for later requests; send all messages without it"
        raise Refusal(400, "thread_unsupported_request", why, param="thread")  # by this code the SDK does so itself
    config = request.output_config
    reject(
        bool(config and config.task_budget), "output_config.task_budget", "it is not shown to the model; leave it out"
    )
    for position, tool in enumerate(request.tools or []):
        field = f"tools[{position}]"
        reject(bool(tool.defer_loading), f"{field}.defer_loading", "tools cannot be loaded later; send false")
        callers = tool.allowed_callers
        reject(callers is not None and "direct" not in callers, f"{field}.allowed_callers", "only 'direct' calls here")
    management = request.context_management
    for position, edit in enumerate(management.edits if management else []):
        kind = str(edit.get("type"))
        why = f"{kind!r} rewrites history, which the gateway never does; compact it in the client"
        reject(not kind.startswith("clear_"), f"context_management.edits[{position}].type", why)
