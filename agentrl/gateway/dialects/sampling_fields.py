"""What OpenAI's and vLLM's dialects have in common: how a request says what it wants sampled."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from agentrl.gateway.dialects.constraints import json_constraint
from agentrl.gateway.dialects.decode import reject
from agentrl.types import Constraint

MAX_CHOICES = 128
MAX_LOGPROBS = 20
_SAME_NAMES = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)


class SamplingFields(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Base of request types. Left out is None."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None

    def sampling(self, *, top_logprobs: int | None, constraint: Constraint | None, field: str) -> dict[str, Any]:
        """As `TurnRequest.sampling` has it. Raises Refusal naming `field` for a number of logprobs out of range."""
        in_range = top_logprobs is None or 0 <= top_logprobs <= MAX_LOGPROBS
        reject(not in_range, field, f"{top_logprobs} is not between 0 and {MAX_LOGPROBS}")
        return {name: getattr(self, name) for name in _SAME_NAMES} | {
            "max_tokens": self.max_tokens,
            "stop": stops(self.stop),
            "stop_token_ids": self.stop_token_ids or None,
            "top_logprobs": top_logprobs or None,
            "constraint": constraint,
        }


class JsonSchema(Struct, forbid_unknown_fields=True):
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


def constraint_of(response_format: ResponseFormat | None) -> Constraint | None:
    """Raises Refusal."""
    if response_format is None:
        return None
    schema = response_format.json_schema.schema if response_format.json_schema else None
    return json_constraint(response_format.type, schema, field="response_format")


def choices_wanted(n: int | None) -> int:
    """OpenAI's `n`. Raises Refusal."""
    reject(n is not None and not 1 <= n <= MAX_CHOICES, "n", f"{n} is not between 1 and {MAX_CHOICES}")
    return n or 1


def stops(stop: str | list[str] | None) -> list[str] | None:
    """OpenAI's `stop`; empty strings count as none."""
    given = [stop] if isinstance(stop, str) else stop
    return [text for text in given if text] or None if given else None
