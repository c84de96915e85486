"""The mock engine's answers as bytes, written once: vLLM 0.32's wire format, field for field."""

from __future__ import annotations

import json
import random
import re
import struct
from functools import cache
from itertools import pairwise
from typing import Any

from bench.gateway.workload import Workload

MAX_MODEL_LEN = 32_768
OK = b"HTTP/1.1 200 OK\r\n"
INTERVAL, DIGITS = b'"stream_interval":', re.compile(rb"\d+")


class Answers:
    """`stream_interval` tokens come in one event of a stream, or more where a request asks for it; 0 is all in one."""

    def __init__(self, workload: Workload, stream_interval: int) -> None:
        models = {"object": "list", "data": [{"id": "policy", "object": "model", "max_model_len": MAX_MODEL_LEN}]}
        self.fixed = {
            b"/health": _json_answer(b""),
            b"/v1/models": _json_answer(_dumps(models)),
            b"/weight_info": _json_answer(_dumps({"weight_version": "default"})),
        }
        turns = range(workload.sizes.turns)
        self._chat = [_json_answer(_dumps(_chat(workload, turn, tokens=False))) for turn in turns]
        self._chat_with_tokens = [_json_answer(_dumps(_chat(workload, turn, tokens=True))) for turn in turns]
        self.stream_head = OK + b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        self._workload = workload
        self._interval = stream_interval
        self.events = cache(self._events)
        self.stream = cache(self._stream)

    def interval(self, body: bytes) -> int:
        """Of a request's stream. As in vLLM, it may ask for fewer and longer events than the server would send."""
        at = body.rfind(INTERVAL)  # behind the prompt's ids
        if at < 0 or not self._interval:
            return self._interval
        return max(self._interval, int(DIGITS.match(body, at + len(INTERVAL))[0]))

    def chat(self, body: bytes) -> bytes:
        """The answer to the turn that this request's messages have reached, with tokens when it asks for them."""
        turn = body.count(b'"assistant"')
        return (self._chat_with_tokens if b'"return_token_ids"' in body else self._chat)[turn % len(self._chat)]

    def _events(self, interval: int) -> list[bytes]:
        """Each as it leaves; the last one ends the answer."""
        events = [_http_chunk(event) for event in _events(self._workload, interval)]
        return [*events[:-1], events[-1] + b"0\r\n\r\n"]

    def _stream(self, interval: int) -> bytes:
        """All of an answer."""
        return self.stream_head + b"".join(self.events(interval))


def _chat(workload: Workload, turn: int, *, tokens: bool) -> dict[str, Any]:
    prompt_ids, answer_ids = workload.prompt_ids(0, turn), workload.answer_ids
    content = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
        for token_id, logprob in zip(answer_ids, _logprobs(len(answer_ids)), strict=True)
        for text in [workload.tokenizer.decode([token_id], skip_special_tokens=False)]
    ]
    choice: dict[str, Any] = {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": workload.answer,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": {"content": content} if tokens else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": answer_ids if tokens else None,
        "routed_experts": None,
    }
    counts = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(answer_ids)}
    return {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "policy",
        "choices": [choice],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": {
            **counts,
            "total_tokens": sum(counts.values()),
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        },
        "prompt_logprobs": None,
        "prompt_token_ids": prompt_ids if tokens else None,
        "prompt_text": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }


def _events(workload: Workload, stream_interval: int) -> list[bytes]:
    """The server-sent events of /inference/v1/generate. As in vLLM, the first has one token, the last the versions."""
    ids = workload.answer_ids
    step = stream_interval or len(ids)
    cuts = [0, *range(1 if stream_interval > 1 else step, len(ids), step), len(ids)]
    entries = [
        {"token_id": token_id, "logprob": logprob, "rank": 1}
        for token_id, logprob in zip(ids, _logprobs(len(ids)), strict=True)
    ]
    events = []
    for start, end in pairwise(cuts):
        last = end == len(ids)
        content = [entry | {"top_logprobs": [entry]} for entry in entries[start:end]]  # the sampled token is in both
        choice = {
            "index": 0,
            "finish_reason": "stop" if last else None,
            "stop_reason": None,
            "token_ids": ids[start:end],
            "routed_experts": None,
            "sampling_mask": None,
            "weight_versions": [{"version": "default", "start": 0, "end": len(ids)}] if last else None,
            "logprobs": {"content": content},
        }
        event = {
            "request_id": "generate-tokens-0123456789abcdef",
            "usage": None,
            "output_mode": "tokens",
            "choices": [choice],
        }
        events.append(b"data: " + _dumps(event) + b"\n\n")
    return [*events, b"data: [DONE]\n\n"]


def _logprobs(count: int) -> list[float]:
    """float32 numbers printed in full, as engines send them."""
    draw = random.Random(0)
    return [struct.unpack("f", struct.pack("f", -draw.expovariate(1.5)))[0] for _ in range(count)]


def _dumps(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _json_answer(body: bytes) -> bytes:
    return OK + b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
