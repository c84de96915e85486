"""The engine's HTTP schema (vLLM 0.32, `/inference/v1/generate`) as pure functions, for the client and the twin."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import orjson

from agentrl.errors import EngineError
from agentrl.types import Sampling, VersionSpan

BOOT_LABEL = "default"
"""The label vLLM gives its weights before the first swap; it is version 0."""

MISSING_LOGPROB = -9999.0
"""What vLLM writes for a logprob that it does not have, that is NaN or that is -inf."""


def version_of(label: object) -> int:
    """The version that an engine's weight label stands for. Raises EngineError for a label that is not a version."""
    if label == BOOT_LABEL:
        return 0
    if isinstance(label, str) and label.isascii() and label.isdigit():
        return int(label)
    raise EngineError(f"the engine names its weights {label!r}; expected {BOOT_LABEL!r} or a version number")


def sampling_params(sampling: Sampling, *, max_tokens: int, send_seed: bool) -> dict[str, Any]:
    """vLLM's sampling_params with every field that reshapes the distribution spelt out.

    A field left out would be filled in by the server, from the model's generation_config.json when it is told to.
    """
    params: dict[str, Any] = {
        "n": 1,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "max_tokens": max_tokens,
        "min_tokens": 0,
        "ignore_eos": False,
        "stop": list(sampling.stop),
        "logprobs": 0,  # of the sampled token only
        "detokenize": bool(sampling.stop),  # text is the gateway's work; the engine needs it for stop strings alone
    }
    if send_seed and sampling.seed is not None:
        params["seed"] = sampling.seed
    return params


def decode_event(data: bytes) -> dict[str, Any]:
    """One server-sent event's JSON. NaN and Infinity literals are let through: logprob checks deal with them."""
    try:
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            event = json.loads(data)
    except ValueError as error:
        raise EngineError(f"the engine's stream holds no JSON: {data[:200]!r}") from error
    if not isinstance(event, dict):
        raise EngineError(f"the engine's stream holds {type(event).__name__}, expected an object: {data[:200]!r}")
    return event


def checked_logprobs(token_ids: Sequence[int], logprobs: Any) -> list[float] | None:
    """The logprobs of `token_ids`, [n], or None when any is missing, not finite or of another token (invariant 3)."""
    if not token_ids:
        return []
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or len(content) != len(token_ids):
        return None
    values = []
    for token_id, entry in zip(token_ids, content, strict=True):
        value = entry.get("logprob")
        if entry.get("token_id") != token_id or not isinstance(value, int | float):
            return None
        if not math.isfinite(value) or value <= MISSING_LOGPROB:
            return None
        values.append(float(value))
    return values


def checked_spans(spans: Any, num_tokens: int) -> list[VersionSpan]:
    """The version spans of a generation. Raises EngineError unless they cover `[0, num_tokens)` in rising versions."""
    found = [VersionSpan(version_of(span["version"]), span["start"], span["end"]) for span in spans or ()]
    ends = [0, *(span.end for span in found)]
    contiguous = all(span.start == end and span.end > span.start for span, end in zip(found, ends, strict=False))
    rising = all(left.version <= right.version for left, right in pairwise(found))
    if not contiguous or not rising or ends[-1] != num_tokens:
        raise EngineError(f"the engine's weight_versions {spans!r} do not cover its {num_tokens} tokens in order")
    return found


def spans_of(versions: Iterable[int]) -> list[VersionSpan]:
    """Run-length spans over one version per token."""
    spans: list[VersionSpan] = []
    for index, version in enumerate(versions):
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].start, index + 1)
        else:
            spans.append(VersionSpan(version, index, index + 1))
    return spans
