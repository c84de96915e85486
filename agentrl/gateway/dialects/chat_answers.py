"""OpenAI chat completions: answers, whole and streamed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from msgspec import Struct

from agentrl.gateway.deltas import Answer, Content, Piece, Reasoning
from agentrl.gateway.dialects.base import Responding
from agentrl.gateway.dialects.openai_answers import ChunkStream, head, usage
from agentrl.types import Call


class Wanted(Struct, frozen=True, kw_only=True):
    """What of an answer a request asked for."""

    logprobs: bool = False
    token_ids: bool = False
    usage: bool = False  # as a last chunk of a stream; a whole answer always has it


def finish_reason(call: Call) -> str:
    return "tool_calls" if call.finish_reason == "stop" and call.message.get("tool_calls") else call.finish_reason


def stop_reason(answer: Answer, stop_token_ids: Sequence[int]) -> str | int | None:
    """vLLM's: which stop string or token of the request ended the answer."""
    ended_at = answer.call.token_ids[-1] if answer.call.token_ids else None
    if answer.stop is None and answer.call.finish_reason == "stop" and ended_at in stop_token_ids:
        return ended_at
    return answer.stop


def encode(answers: Sequence[Answer], wanted: Wanted, responding: Responding) -> bytes:
    choices = []
    for index, answer in enumerate(answers):
        call = answer.call
        choice: dict[str, Any] = {
            "index": index,
            "message": {"refusal": None, **call.message},
            "logprobs": None,
            "finish_reason": finish_reason(call),
        }
        if wanted.logprobs:
            choice["logprobs"] = logprobs(call.token_ids, answer.logprobs, answer.top_logprobs, responding)
        if wanted.token_ids:
            choice["token_ids"] = call.token_ids
        choices.append(choice)
    response = head("chat.completion", responding) | {"choices": choices, "usage": usage(answers)}
    if wanted.token_ids:
        response["prompt_token_ids"] = answers[0].call.prompt_token_ids
    return orjson.dumps(response)


class ChatStream(ChunkStream):
    """Chunks. Every sampled token is in exactly one of them where logprobs or token ids are wanted (case 41)."""

    def __init__(self, wanted: Wanted, responding: Responding) -> None:
        super().__init__(head("chat.completion.chunk", responding), usage_wanted=wanted.usage, null_usage=True)
        self._wanted = wanted
        self._responding = responding
        self._begun: set[int] = set()  # choices whose role was sent
        self._with_content: set[int] = set()
        self._num_calls: dict[int, int] = {}

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        self._begun.add(0)
        prompt = {"prompt_token_ids": list(prompt_ids)} if self._wanted.token_ids else {}
        return self._chunk(_choice(0, {"role": "assistant"}), **prompt)

    def piece(self, choice: int, piece: Piece) -> bytes:
        chunks = [self._delta(choice, delta) for delta in piece.deltas]
        if piece.token_ids and (self._wanted.logprobs or self._wanted.token_ids):
            chunks = chunks or [_choice(choice, {})]
            if self._wanted.logprobs:
                chunks[0]["logprobs"] = logprobs(piece.token_ids, piece.logprobs, piece.top_logprobs, self._responding)
            if self._wanted.token_ids:
                chunks[0]["token_ids"] = piece.token_ids
        if chunks and choice not in self._begun:
            self._begun.add(choice)
            chunks[0]["delta"] = {"role": "assistant"} | chunks[0]["delta"]
        return b"".join(self._chunk(chunk) for chunk in chunks)

    def end(self, answers: Sequence[Answer]) -> bytes:
        sent = []
        for index, answer in enumerate(answers):
            delta: dict[str, Any] = {} if index in self._begun else {"role": "assistant"}
            if answer.call.message.get("content") == "" and index not in self._with_content:
                delta["content"] = ""
            chunk = _choice(index, delta) | {"finish_reason": finish_reason(answer.call)}
            if self._wanted.logprobs and not answer.call.token_ids:
                chunk["logprobs"] = logprobs([], answer.logprobs, None, self._responding)
            sent.append(self._chunk(chunk))
        return self._closed(sent, answers)

    def _delta(self, choice: int, delta: Any) -> dict[str, Any]:
        if isinstance(delta, Content):
            self._with_content.add(choice)
            return _choice(choice, {"content": delta.text})
        if isinstance(delta, Reasoning):
            return _choice(choice, {"reasoning_content": delta.text})
        index = self._num_calls.get(choice, 0)
        self._num_calls[choice] = index + 1
        function = {"name": delta.name, "arguments": delta.arguments}
        return _choice(
            choice, {"tool_calls": [{"index": index, "id": delta.id, "type": "function", "function": function}]}
        )


def _choice(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def logprobs(
    token_ids: Sequence[int],
    values: Sequence[float] | None,
    top_logprobs: Sequence[Sequence[tuple[int, float]]] | None,
    responding: Responding,
) -> dict[str, Any] | None:
    """One entry per sampled token, the one that ended the turn included. Part of a character has bytes, no text."""
    if values is None:
        return None
    content = []
    for i, (token_id, value) in enumerate(zip(token_ids, values, strict=True)):
        others = [] if top_logprobs is None else [_token(*pair, responding) for pair in top_logprobs[i]]
        content.append(_token(token_id, value, responding) | {"top_logprobs": others})
    return {"content": content, "refusal": None}


def _token(token_id: int, logprob: float, responding: Responding) -> dict[str, Any]:
    data = responding.token_bytes(token_id)
    return {"token": token_text(data), "logprob": logprob, "bytes": list(data)}


def token_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
