"""vLLM's token-in/token-out API (`POST /inference/v1/generate`): ids in, ids with logprobs and weight versions out.

A prompt that begins with prompt + sample of an earlier call of the session is recorded as its continuation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta, Struct

from agentrl.gateway.deltas import Answer, Piece
from agentrl.gateway.dialects.base import Dialect, Responding, event
from agentrl.gateway.dialects.chat_answers import stop_reason
from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.openai_answers import ChunkStream, usage
from agentrl.gateway.dialects.sampling_fields import SamplingFields, choices_wanted
from agentrl.gateway.request import RawTokens, TurnRequest
from agentrl.types import Constraint

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class StructuredOutputs(Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """One of them."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: str | None = None


class SamplingParams(SamplingFields, kw_only=True, frozen=True):
    n: int = 1
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    structured_outputs: StructuredOutputs | None = None
    # no effect on an answer of ids
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False


class GenerateRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    token_ids: Annotated[list[TokenId], Meta(min_length=1)]
    sampling_params: SamplingParams = SamplingParams()
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    output_mode: str = "tokens"
    # the gateway sets its own
    cache_salt: str | None = None
    priority: int = 0


_decoder = msgspec.json.Decoder(GenerateRequest)


def decode(body: bytes) -> tuple[TurnRequest, GenerateRequest]:
    request = decode_body(_decoder, body)
    params = request.sampling_params
    reject(request.output_mode != "tokens", "output_mode", f"{request.output_mode!r}; only 'tokens' is supported")
    reject(request.priority != 0, "priority", "requests are served in the order in which they come")
    reject(params.min_tokens != 0, "sampling_params.min_tokens", "it reshapes the distribution; leave it out")
    reject(params.ignore_eos, "sampling_params.ignore_eos", "it is not supported; leave it out")
    constraint = _constraint(params.structured_outputs)
    turn = TurnRequest(
        prompts=[RawTokens(request.token_ids)],
        n=choices_wanted(params.n),
        stream=bool(request.stream),
        sampling=params.sampling(top_logprobs=params.logprobs, constraint=constraint, field="sampling_params.logprobs"),
        num_bytes=0,  # ids need no encoding, however many they are
    )
    return turn, request


def _constraint(outputs: StructuredOutputs | None) -> Constraint | None:
    if outputs is None:
        return None
    given = {kind: value for kind, value in msgspec.to_builtins(outputs).items() if value not in (None, False)}
    reject(len(given) != 1, "sampling_params.structured_outputs", f"it has {len(given)} constraints; one is needed")
    [(kind, value)] = given.items()
    return Constraint(kind=kind, value=value)


def encode(answers: Sequence[Answer], request: GenerateRequest, responding: Responding) -> bytes:
    choices = [
        _end_of(index, answer, request)
        | {
            "token_ids": answer.call.token_ids,
            "logprobs": _logprobs(answer.call.token_ids, answer.logprobs, answer.top_logprobs, request),
        }
        for index, answer in enumerate(answers)
    ]
    head = _head(request, responding) | {"model": responding.model, "created": responding.created}
    if request.return_token_ids:
        head["prompt_token_ids"] = request.token_ids
    return orjson.dumps(head | {"choices": choices, "usage": usage(answers)})


class GenerateStream(ChunkStream):
    """The last chunk of a choice has its finish reason and weight versions, and no tokens."""

    def __init__(self, request: GenerateRequest, responding: Responding) -> None:
        usage_wanted = bool((request.stream_options or {}).get("include_usage"))
        super().__init__(_head(request, responding), usage_wanted=usage_wanted, null_usage=False)
        self._request = request

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        if not self._request.return_token_ids:
            return b""
        return event(orjson.dumps(self._head | {"choices": [], "prompt_token_ids": list(prompt_ids)}))

    def piece(self, choice: int, piece: Piece) -> bytes:
        if not piece.token_ids:
            return b""
        logprobs = _logprobs(piece.token_ids, piece.logprobs, piece.top_logprobs, self._request)
        chunk = {"index": choice, "token_ids": piece.token_ids, "logprobs": logprobs, "finish_reason": None}
        return self._chunk(chunk)

    def end(self, answers: Sequence[Answer]) -> bytes:
        sent = []
        for index, answer in enumerate(answers):
            chunk = _end_of(index, answer, self._request) | {"token_ids": [], "logprobs": None}
            sent.append(self._chunk(chunk))
        return self._closed(sent, answers)


def _head(request: GenerateRequest, responding: Responding) -> dict[str, Any]:
    """`call_id` names the call in the session's trajectory; `request_id` is the client's own."""
    return {
        "request_id": request.request_id or responding.response_id,
        "call_id": responding.response_id,
        "output_mode": "tokens",
    }


def _end_of(index: int, answer: Answer, request: GenerateRequest) -> dict[str, Any]:
    call = answer.call
    spans = [{"version": str(span.version), "start": span.start, "end": span.end} for span in call.versions]
    return {
        "index": index,
        "finish_reason": call.finish_reason,
        "stop_reason": stop_reason(answer, request.sampling_params.stop_token_ids or ()),
        "weight_versions": spans or None,
    }


def _logprobs(
    token_ids: Sequence[int],
    values: Sequence[float] | None,
    top_logprobs: Sequence[Sequence[tuple[int, float]]] | None,
    request: GenerateRequest,
) -> dict[str, Any] | None:
    if request.sampling_params.logprobs is None or values is None:
        return None
    return {
        "content": [
            {
                "token_id": token_id,
                "logprob": value,
                "top_logprobs": []
                if top_logprobs is None
                else [{"token_id": other, "logprob": logprob} for other, logprob in top_logprobs[i]],
            }
            for i, (token_id, value) in enumerate(zip(token_ids, values, strict=True))
        ]
    }


GENERATE: Dialect[GenerateRequest] = Dialect(
    name="generate",
    path="/inference/v1/generate",
    call_prefix="gen-",
    decode=decode,
    encode=encode,
    stream=GenerateStream,
    error=openai_error,
    request_type=GenerateRequest,
)
