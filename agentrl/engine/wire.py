"""The engine's HTTP schema (vLLM 0.32, `/inference/v1/generate`) as pure functions, for the client and the twin."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from agentrl.errors import EngineError
from agentrl.types import FinishReason, Sampling, VersionSpan

Answer = TypeVar("Answer")

BOOT_LABEL = "default"
"""The label vLLM gives its weights before the first swap; it is version 0."""

MISSING_LOGPROB = -9999.0
"""What vLLM writes for a logprob that it does not have, that is NaN or that is -inf."""

MAX_LOGPROB = 1e-6
"""0 and the rounding of a float32 log-softmax; above it no probability has its logarithm."""

VERSION_DIGITS = 18
"""Of a version number, so that it fits 64 bits."""


TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class Choice(Struct):
    """A piece of a generation. Only what its tokens are is read strictly: what else is wrong must not lose them."""

    token_ids: list[TokenId] | None = None
    logprobs: Any = None  # see `checked_logprobs`
    finish_reason: Any = None
    stop_reason: Any = None
    weight_versions: Any = None  # last piece only, see `checked_spans`


class Event(Struct):
    """One server-sent event of a stream."""

    choices: list[Choice] = []
    error: Raw | UnsetType = UNSET


class GoodLogprob(Struct, gc=False):
    token_id: int
    logprob: Annotated[float, Meta(gt=MISSING_LOGPROB, le=MAX_LOGPROB)]


class GoodLogprobs(Struct, gc=False):
    content: list[GoodLogprob]


class GoodChoice(Struct):
    """What `Choice` nearly always is. Read in one go, all of it strictly."""

    token_ids: list[TokenId]
    logprobs: GoodLogprobs | None = None  # none when there is no token
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    weight_versions: Any = None  # last piece only, see `checked_spans`


class GoodEvent(Struct):
    choices: list[GoodChoice]
    error: UnsetType = UNSET  # an event with one is not good


class StreamError(Struct):
    code: int | None = None


class Model(Struct):
    max_model_len: Annotated[int, Meta(gt=0)] | None


class Models(Struct):
    """`/v1/models`: one server serves one model, and maybe adapters of it, which say nothing of their context."""

    data: Annotated[list[Model], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.data[0].max_model_len is None:
            raise ValueError("data[0] has no max_model_len")

    @property
    def context_length(self) -> int:
        assert self.data[0].max_model_len is not None
        return self.data[0].max_model_len


class WeightInfo(Struct):
    """`/weight_info`."""

    weight_version: str


class WireSpan(Struct):
    version: str
    start: int
    end: int


def version_of(label: object) -> int:
    """The version that an engine's weight label stands for. Raises EngineError for a label that is not a version."""
    if label == BOOT_LABEL:
        return 0
    if isinstance(label, str) and label.isascii() and label.isdigit() and len(label) <= VERSION_DIGITS:
        return int(label)
    raise EngineError(
        f"the engine names its weights {reprlib.repr(label)}; expected {BOOT_LABEL!r} or a version number"
    )


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
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": sampling.top_logprobs,  # beside the sampled token's own
        "detokenize": bool(sampling.stop),  # text is the gateway's work; the engine needs it for stop strings alone
    }
    if sampling.stop:
        params["skip_special_tokens"] = False  # stop strings are sought in the text that the gateway gives out
    if sampling.stream_interval is not None:
        params["stream_interval"] = sampling.stream_interval
    if (constraint := sampling.constraint) is not None:
        params["structured_outputs"] = {constraint.kind: constraint.value}
    if send_seed and sampling.seed is not None:
        params["seed"] = sampling.seed
    return params


def decode(data: bytes, kind: type[Answer], *, source: str) -> Answer:
    """What `source`, an engine's URL, sent, as `kind`. Raises EngineError that names what is wrong with it.

    NaN and Infinity, which Python writes and JSON does not have, read as null.
    """
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError:
            return msgspec.json.decode(orjson.dumps(json.loads(data)), type=kind)
    except (ValueError, TypeError, RecursionError) as error:  # of msgspec, json and orjson
        raise EngineError(f"engine {source} breaks its contract: {error}; it sent {data[:200]!r}") from error


_GOOD_EVENT = msgspec.json.Decoder(GoodEvent)


def good_choices(events: Sequence[bytes]) -> list[GoodChoice] | None:
    """The choices of JSON events, or None unless each is as it should be; `decode` then tells what is wrong, if it is.

    Their logprobs are those that `checked_logprobs` would return.
    """
    try:
        choices = [choice for event in events for choice in _GOOD_EVENT.decode(event).choices]
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return None
    for choice in choices:
        logprobs = choice.logprobs
        if (0 if logprobs is None else len(logprobs.content)) != len(choice.token_ids):
            return None
        if logprobs is not None and [entry.token_id for entry in logprobs.content] != choice.token_ids:
            return None
    return choices


def may_pass(error: Raw) -> bool:
    """Whether a failure reported inside a stream is one of the engine, not of the request."""
    try:
        return msgspec.json.decode(error, type=StreamError).code != 400
    except msgspec.ValidationError:
        return True


def num_logprobs(logprobs: Any) -> int:
    """Of how many tokens they are; 0 where they are none."""
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return len(content) if isinstance(content, list) else 0


def checked_logprobs(token_ids: Sequence[int], logprobs: Any) -> list[float] | None:
    """The logprobs of `token_ids`, [n], or None when any is missing, no logarithm of a probability or of another token.

    Then the sample must not be trained (invariant 3).
    """
    if not token_ids:
        return []
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or len(content) != len(token_ids):
        return None
    values = []
    for token_id, entry in zip(token_ids, content, strict=True):
        value = entry.get("logprob") if isinstance(entry, dict) else None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if not MISSING_LOGPROB < value <= MAX_LOGPROB:  # NaN too
            return None
        if entry.get("token_id") != token_id:
            return None
        values.append(float(value))
    return values


def top_logprobs(logprobs: Any, count: int) -> list[list[tuple[int, float]]] | None:
    """[n][k] alternatives of each token, best first, for people to look at. None when they are not all there."""
    try:
        return [
            sorted(
                ((int(entry["token_id"]), float(entry["logprob"])) for entry in token["top_logprobs"]),
                key=lambda pair: -pair[1],
            )[:count]
            for token in logprobs["content"]
        ]
    except (TypeError, KeyError, ValueError):
        return None


def checked_spans(spans: Any, num_tokens: int) -> list[VersionSpan]:
    """The version spans of a generation. Raises EngineError unless they cover `[0, num_tokens)` in rising versions."""
    try:
        read = msgspec.convert(spans or [], list[WireSpan])
    except msgspec.ValidationError as error:
        raise EngineError(f"the engine's weight_versions are not spans: {error}") from error
    found = [VersionSpan(version_of(span.version), span.start, span.end) for span in read]
    ends = [0, *(span.end for span in found)]
    contiguous = all(span.start == end and span.end > span.start for span, end in zip(found, ends, strict=False))
    rising = all(left.version <= right.version for left, right in pairwise(found))
    if not contiguous or not rising or ends[-1] != num_tokens:
        raise EngineError(
            f"the engine's weight_versions {reprlib.repr(spans)} do not cover its {num_tokens} tokens in order"
        )
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
