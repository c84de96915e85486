"""What the answers of OpenAI's and vLLM's dialects have in common: usage, heads, and how their streams are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from agentrl.gateway.deltas import Answer
from agentrl.gateway.dialects.base import Responding, event
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.refusal import Refusal

DONE = event(b"[DONE]")


def usage(answers: Sequence[Answer]) -> dict[str, Any]:
    """Prompts count once each, whatever `n` was."""
    prompts = {id(answer.call.prompt_token_ids): len(answer.call.prompt_token_ids) for answer in answers}
    prompt, sampled = sum(prompts.values()), sum(len(answer.call.token_ids) for answer in answers)
    found: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
    }
    if reasoning := sum(answer.reasoning_tokens for answer in answers):
        found["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return found


def head(kind: str, responding: Responding) -> dict[str, Any]:
    return {
        "id": responding.response_id,
        "object": kind,
        "created": responding.created,
        "model": responding.model,
    }


class ChunkStream:
    """Base of streams of chunks under one head.

    `usage_wanted` is for a last chunk that tells the usage; OpenAI's other chunks then have a null there.
    """

    def __init__(self, head: dict[str, Any], *, usage_wanted: bool, null_usage: bool) -> None:
        self._head = head
        self._usage_wanted = usage_wanted
        self._beside: dict[str, Any] = {"usage": None} if usage_wanted and null_usage else {}

    def fail(self, refusal: Refusal) -> bytes:
        return event(openai_error(refusal))

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _chunk(self, choice: dict[str, Any], **fields: Any) -> bytes:
        """One choice's part. `fields` stand beside the choices."""
        return event(orjson.dumps(self._head | {"choices": [choice]} | fields | self._beside))

    def _closed(self, sent: Sequence[bytes], answers: Sequence[Answer]) -> bytes:
        """What was sent to end each choice, and the end of the whole."""
        last = (
            [event(orjson.dumps(self._head | {"choices": [], "usage": usage(answers)}))] if self._usage_wanted else []
        )
        return b"".join([*sent, *last, DONE])
