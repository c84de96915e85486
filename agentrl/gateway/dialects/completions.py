"""OpenAI completions (`POST /v1/completions`): prompts that the client wrote itself, as text or as token ids.

A prompt that begins with what an earlier call of the session was given and answered continues its recorded ids.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import orjson
from msgspec import Meta, Struct

from agentrl.gateway.deltas import Answer, Content, Piece
from agentrl.gateway.dialects.base import Dialect, Responding
from agentrl.gateway.dialects.chat_answers import stop_reason, token_text
from agentrl.gateway.dialects.decode import decode_body, reject
from agentrl.gateway.dialects.errors import openai_error
from agentrl.gateway.dialects.openai_answers import ChunkStream, head, usage
from agentrl.gateway.dialects.sampling_fields import (
    MAX_CHOICES,
    ResponseFormat,
    SamplingFields,
    StreamOptions,
    choices_wanted,
    constraint_of,
)
from agentrl.gateway.request import Prompt, RawText, RawTokens, TurnRequest

TokenId = Annotated[int, Meta(ge=0, lt=2**31)]


class CompletionRequest(SamplingFields, kw_only=True, frozen=True):
    prompt: str | list[str | int | list[TokenId]]
    model: str | None = None
    add_special_tokens: bool = True
    n: int | None = None
    best_of: int | None = None
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    logit_bias: dict[str, float] | None = None
    # no effect on an answer
    user: str | None = None


class Wanted(Struct, frozen=True, kw_only=True):
    """What of an answer a request asked for."""

    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False
    echo: bool = False
    stop_token_ids: Sequence[int] = ()


_decoder = msgspec.json.Decoder(CompletionRequest)


def decode(body: bytes) -> tuple[TurnRequest, Wanted]:
    request = decode_body(_decoder, body)
    reject(bool(request.logit_bias), "logit_bias", "it is not supported")
    reject(bool(request.suffix), "suffix", "infilling is not supported")
    reject(request.best_of not in (None, request.n or 1), "best_of", "it is not supported; ask for n and choose")
    reject(bool(request.echo and request.logprobs is not None), "echo", "prompts have no logprobs; leave one of both")
    reject(bool(request.echo and request.stream), "echo", "it is not supported in a stream")
    n, prompts = choices_wanted(request.n), _prompts(request)
    reject(n * len(prompts) > MAX_CHOICES, "prompt", f"{len(prompts)} prompts × {n} are more than {MAX_CHOICES}")
    constraint = constraint_of(request.response_format)
    sampling = request.sampling(top_logprobs=request.logprobs, constraint=constraint, field="logprobs")
    turn = TurnRequest(prompts=prompts, n=n, stream=bool(request.stream), sampling=sampling, num_bytes=len(body))
    wanted = Wanted(
        logprobs=request.logprobs is not None,
        token_ids=bool(request.return_token_ids),
        usage=bool(request.stream_options and request.stream_options.include_usage),
        echo=bool(request.echo),
        stop_token_ids=request.stop_token_ids or (),
    )
    return turn, wanted


def _prompts(request: CompletionRequest) -> list[Prompt]:
    given = request.prompt
    reject(not given, "prompt", "it is empty")
    if isinstance(given, str):
        return [RawText(given, request.add_special_tokens)]
    if all(isinstance(item, int) for item in given):
        return [RawTokens([_token_id(item) for item in given])]
    prompts: list[Prompt] = []
    for index, item in enumerate(given):
        reject(isinstance(item, int), f"prompt[{index}]", "token ids beside other prompts; put them into a list")
        reject(not item, f"prompt[{index}]", "it is empty")
        prompts.append(RawText(item, request.add_special_tokens) if isinstance(item, str) else RawTokens(item))  # type: ignore[arg-type]
    return prompts


def _token_id(item: object) -> int:
    assert isinstance(item, int)
    reject(not 0 <= item < 2**31, "prompt", f"{item} is no token id")
    return item


def encode(answers: Sequence[Answer], wanted: Wanted, responding: Responding) -> bytes:
    choices = []
    for index, answer in enumerate(answers):
        call, text = answer.call, answer.call.message.get("content") or ""
        if wanted.echo:
            text = responding.text(call.prompt_token_ids) + text
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": None,
            "finish_reason": call.finish_reason,
            "stop_reason": stop_reason(answer, wanted.stop_token_ids),
        }
        if wanted.logprobs:
            offsets = TextOffsets()
            choice["logprobs"] = _logprobs(call.token_ids, answer.logprobs, answer.top_logprobs, offsets, responding)
        if wanted.token_ids:
            choice |= {"token_ids": call.token_ids, "prompt_token_ids": call.prompt_token_ids}
        choices.append(choice)
    return orjson.dumps(head("text_completion", responding) | {"choices": choices, "usage": usage(answers)})


class CompletionStream(ChunkStream):
    def __init__(self, wanted: Wanted, responding: Responding) -> None:
        super().__init__(head("text_completion", responding), usage_wanted=wanted.usage, null_usage=True)
        self._wanted = wanted
        self._responding = responding
        self._offsets: dict[int, TextOffsets] = {}

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        return b""

    def piece(self, choice: int, piece: Piece) -> bytes:
        text = "".join(delta.text for delta in piece.deltas if isinstance(delta, Content))
        wanted = self._wanted
        if not text and not (piece.token_ids and (wanted.logprobs or wanted.token_ids)):
            return b""
        chunk = _part(choice, text)
        if wanted.logprobs and piece.token_ids:
            offsets = self._offsets.setdefault(choice, TextOffsets())
            chunk["logprobs"] = _logprobs(
                piece.token_ids, piece.logprobs, piece.top_logprobs, offsets, self._responding
            )
        if wanted.token_ids:
            chunk["token_ids"] = piece.token_ids
        return self._chunk(chunk)

    def end(self, answers: Sequence[Answer]) -> bytes:
        sent = []
        for index, answer in enumerate(answers):
            reason = stop_reason(answer, self._wanted.stop_token_ids)
            chunk = _part(index, "") | {"finish_reason": answer.call.finish_reason, "stop_reason": reason}
            if self._wanted.logprobs and not answer.call.token_ids:
                chunk["logprobs"] = _logprobs([], answer.logprobs, answer.top_logprobs, TextOffsets(), self._responding)
            if self._wanted.token_ids:
                chunk |= {"token_ids": [], "prompt_token_ids": answer.call.prompt_token_ids}
            sent.append(self._chunk(chunk))
        return self._closed(sent, answers)


def _part(index: int, text: str) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}


class TextOffsets:
    """Where in the text the tokens of one answer begin, in characters; a part of a character where that begins."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def next(self, data: bytes) -> int:
        """Where the token begins that these bytes spell."""
        begin = self._length
        self._length += len(self._decoder.decode(data))
        return begin


def _logprobs(
    token_ids: Sequence[int],
    values: Sequence[float] | None,
    top_logprobs: Sequence[Sequence[tuple[int, float]]] | None,
    offsets: TextOffsets,
    responding: Responding,
) -> dict[str, Any] | None:
    """One entry per sampled token."""
    if values is None:
        return None
    spelt = [responding.token_bytes(token_id) for token_id in token_ids]
    top = None
    if top_logprobs is not None:
        top = [{token_text(responding.token_bytes(i)): value for i, value in pairs} for pairs in top_logprobs]
    return {
        "tokens": [token_text(data) for data in spelt],
        "token_logprobs": list(values),
        "top_logprobs": top,
        "text_offset": [offsets.next(data) for data in spelt],
    }


COMPLETIONS: Dialect[Wanted] = Dialect(
    name="completions",
    path="/v1/completions",
    call_prefix="cmpl-",
    decode=decode,
    encode=encode,
    stream=CompletionStream,
    error=openai_error,
    request_type=CompletionRequest,
)
