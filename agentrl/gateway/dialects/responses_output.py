"""Answers → the Response object of the Responses API. Plain dicts, shared by whole and streamed responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentrl.gateway.deltas import Answer, Reasoning, ToolCall, deltas_of
from agentrl.gateway.dialects.base import Responding
from agentrl.gateway.dialects.chat_answers import token_text
from agentrl.gateway.dialects.responses_items import Status
from agentrl.gateway.dialects.responses_request import Asked
from agentrl.gateway.refusal import Refusal

Item = dict[str, Any]

LEAST_LOGPROB = -9999.0
"""What OpenAI's APIs write for a probability of 0; JSON has no infinity."""


FIELDS = {"messages": "input", "max_tokens": "max_output_tokens", "constraint": "text.format"}
"""Fields of the core by the names that they have in this API."""


def renamed(refusal: Refusal) -> Refusal:
    """A refusal of the core, naming the field as this API does."""
    if (name := FIELDS.get(refusal.param or "")) is None:
        return refusal
    return Refusal(refusal.status, refusal.code, refusal.message, param=name, retry_after=refusal.retry_after)


def begun_response(asked: Asked, responding: Responding) -> dict[str, Any]:
    """As it stands before anything was sampled."""
    request, reasoning = asked.request, asked.request.reasoning
    return {
        "id": responding.response_id,
        "object": "response",
        "created_at": responding.created,
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata or {},
        "model": responding.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "temperature": request.temperature,
        "text": asked.text,
        "tool_choice": request.tool_choice or "auto",
        "tools": asked.tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
    }


def finished_response(answer: Answer, asked: Asked, responding: Responding) -> dict[str, Any]:
    """`temperature` and `top_p` are those that it was sampled with, whatever the request said."""
    call = answer.call
    whole = call.finish_reason == "stop"
    prompt, sampled = len(call.prompt_token_ids), len(call.token_ids)
    return begun_response(asked, responding) | {
        "status": "completed" if whole else "incomplete",
        "completed_at": int(call.ended_at) if whole else None,
        "incomplete_details": None if whole else {"reason": "max_output_tokens"},
        "temperature": call.sampling.temperature,
        "top_p": call.sampling.top_p,
        "output": output_items(answer, asked, responding),
        "usage": {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": answer.reasoning_tokens},
            "total_tokens": prompt + sampled,
        },
    }


def failed_response(refusal: Refusal, asked: Asked, responding: Responding) -> dict[str, Any]:
    if refusal.status == 429:
        code = "rate_limit_exceeded"
    else:
        code = "server_error" if refusal.status >= 500 else "invalid_prompt"
    error = {"code": code, "message": refusal.message}
    return begun_response(asked, responding) | {"status": "failed", "error": error}


def output_items(answer: Answer, asked: Asked, responding: Responding) -> list[Item]:
    """Reasoning if there is any, then the text, then the calls; one text at least where there are no calls.

    Only a text can be cut off: what is no whole call is text.
    """
    message, response_id = answer.call.message, responding.response_id
    content, calls = message.get("content") or "", [d for d in deltas_of(message) if isinstance(d, ToolCall)]
    text_status: Status = "completed" if answer.call.finish_reason == "stop" or calls else "incomplete"
    items: list[Item] = []
    for delta in deltas_of(message):
        if isinstance(delta, Reasoning):
            items.append(reasoning_item(response_id, "completed" if content else text_status, delta.text))
    if content or not calls:
        logprobs = answer_logprobs(answer, responding) if asked.request.wants_logprobs else []
        items.append(message_item(response_id, text_status, output_text(content, logprobs)))
    return items + [call_item(response_id, index, call) for index, call in enumerate(calls)]


def reasoning_item(response_id: str, status: Status, text: str | None = None) -> Item:
    content = [] if text is None else [reasoning_text(text)]
    return {"id": f"rs_{response_id}", "type": "reasoning", "summary": [], "content": content, "status": status}


def reasoning_text(text: str) -> dict[str, Any]:
    return {"type": "reasoning_text", "text": text}


def message_item(response_id: str, status: Status, part: dict[str, Any] | None = None) -> Item:
    content = [] if part is None else [part]
    return {
        "id": f"msg_{response_id}",
        "type": "message",
        "role": "assistant",
        "content": content,
        "status": status,
    }


def output_text(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(response_id: str, index: int, call: ToolCall) -> Item:
    return {
        "id": f"fc_{index}_{response_id}",
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": "completed",
    }


def answer_logprobs(answer: Answer, responding: Responding) -> list[dict[str, Any]]:
    """Of every sampled token: those of the reasoning, of the calls and of the end of the turn too."""
    return token_logprobs(answer.call.token_ids, answer.logprobs, answer.top_logprobs, responding)


def token_logprobs(
    token_ids: Sequence[int],
    logprobs: Sequence[float] | None,
    top_logprobs: Sequence[Sequence[tuple[int, float]]] | None,
    responding: Responding,
) -> list[dict[str, Any]]:
    """[n], or [] when the engine sent none. Part of a character has bytes and a spelling of them for text."""
    if logprobs is None:
        return []
    entries = []
    for index, (token_id, logprob) in enumerate(zip(token_ids, logprobs, strict=True)):
        top = [_logprob(*other, responding) for other in top_logprobs[index]] if top_logprobs else []
        entries.append(_logprob(token_id, logprob, responding) | {"top_logprobs": top})
    return entries


def _logprob(token_id: int, logprob: float, responding: Responding) -> dict[str, Any]:
    data = responding.token_bytes(token_id)
    return {"token": token_text(data), "bytes": list(data), "logprob": max(LEAST_LOGPROB, logprob)}


def without_bytes(logprobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As events have them."""
    return [
        {
            "token": entry["token"],
            "logprob": entry["logprob"],
            "top_logprobs": [{"token": top["token"], "logprob": top["logprob"]} for top in entry["top_logprobs"]],
        }
        for entry in logprobs
    ]
