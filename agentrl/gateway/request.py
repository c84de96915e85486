"""A dialect's request in the terms of the core. Made by a dialect's `decode`, taken by `turns`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from msgspec import Struct


class NamedTool(Struct, frozen=True):
    """The one tool that has to be called."""

    name: str


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class Conversation(Struct, kw_only=True):
    """Chat messages in OpenAI form, to be written by the chat template."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None  # in chat completions' form: {"type": "function", "function": {…}}
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    instructions: str | None = None  # a system message before all others that the next request does not inherit
    after: str | None = None  # id of the call whose conversation and answer come before `messages`
    template_kwargs: dict[str, Any] = {}  # further variables of the chat template


class RawText(Struct, frozen=True):
    """A prompt that the client wrote itself; control tokens in it are the client's own."""

    text: str
    add_special_tokens: bool = True


class RawTokens(Struct, frozen=True):
    """A prompt as token ids."""

    token_ids: list[int]


Prompt = Conversation | RawText | RawTokens


class TurnRequest(Struct, kw_only=True):
    """`n` answers for each prompt. Choice i answers prompt i // n."""

    prompts: list[Prompt]
    n: int = 1
    stream: bool = False
    sampling: Mapping[str, Any] = {}  # fields of Sampling; None is left out
    num_bytes: int = 0  # of the request's body
