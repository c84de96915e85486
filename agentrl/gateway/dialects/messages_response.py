"""Finished answers and refusals as Anthropic's objects.

An answer's blocks are its thinking, its text and its calls, in this order, each where there is one; a model that said
nothing has no content. The stream sends the same blocks.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentrl.gateway.deltas import Answer, Content, Reasoning, deltas_of
from agentrl.gateway.dialects.base import Responding
from agentrl.gateway.dialects.messages_input import input_json
from agentrl.gateway.dialects.messages_request import MessagesRequest, PromptFields
from agentrl.gateway.refusal import Refusal

ERROR_TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Signature:
    """The signature of a thinking block: a digest of its text, the same for the same text. Nobody checks it."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=32)

    def add(self, text: str) -> None:
        self._digest.update(text.encode())

    def text(self) -> str:
        return base64.b64encode(self._digest.digest()).decode()


def encode(answers: Sequence[Answer], request: MessagesRequest, responding: Responding) -> bytes:
    [answer] = answers
    stop_reason, stop_sequence = stop_of(answer)
    return orjson.dumps(
        {
            **empty_message(responding, len(answer.call.prompt_token_ids)),
            "content": blocks_of(answer.call.message),
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": usage(len(answer.call.prompt_token_ids), answer),
            **applied_edits(request),
        }
    )


def empty_message(responding: Responding, num_prompt_ids: int) -> dict[str, Any]:
    """A message before anything of it was sampled."""
    return {
        "id": responding.response_id,
        "type": "message",
        "role": "assistant",
        "model": responding.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "usage": usage(num_prompt_ids, None),
    }


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The content of a message made by `message_of`."""
    blocks: list[dict[str, Any]] = []
    for delta in deltas_of(message):
        if isinstance(delta, Reasoning):
            signature = Signature()
            signature.add(delta.text)
            blocks.append({"type": "thinking", "thinking": delta.text, "signature": signature.text()})
        elif isinstance(delta, Content):
            blocks.append({"type": "text", "text": delta.text})
        else:
            tool_input = orjson.Fragment(input_json(delta.arguments))
            blocks.append({"type": "tool_use", "id": delta.id, "name": delta.name, "input": tool_input})
    return blocks


def stop_of(answer: Answer) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence). What was cut off says so, whatever whole calls it has."""
    if answer.call.finish_reason != "stop":
        return "max_tokens", None
    if answer.stop is not None:
        return "stop_sequence", answer.stop
    return ("tool_use" if answer.call.message.get("tool_calls") else "end_turn"), None


def usage(num_prompt_ids: int, answer: Answer | None) -> dict[str, Any]:
    """`input_tokens` counts the whole prompt: nothing is billed apart, so nothing is counted as cached."""
    counts: dict[str, Any] = {
        "input_tokens": num_prompt_ids,
        "output_tokens": len(answer.call.token_ids) if answer else 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    if answer:
        counts["output_tokens_details"] = {"thinking_tokens": answer.reasoning_tokens}
    return counts


def applied_edits(request: PromptFields) -> dict[str, Any]:
    """That nothing was edited, for a request that allowed it."""
    return {} if request.context_management is None else {"context_management": {"applied_edits": []}}


def error_object(refusal: Refusal) -> dict[str, Any]:
    """`details.error_code` is the refusal's own code, which the API leaves to the server."""
    default = "api_error" if refusal.status >= 500 else "invalid_request_error"
    message = refusal.message
    if refusal.code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # by these words coding agents know that they have to compact
    elif refusal.param and refusal.param not in message:
        message = f"{refusal.param}: {message}"
    details = {"error_code": refusal.code} | ({"param": refusal.param} if refusal.param else {})
    kind = ERROR_TYPES.get(refusal.status, default)
    return {"type": "error", "error": {"type": kind, "message": message, "details": details}}


def error(refusal: Refusal) -> bytes:
    return orjson.dumps(error_object(refusal))
