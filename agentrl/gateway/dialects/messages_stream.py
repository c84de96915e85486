"""A streamed Anthropic message.

Thinking and text go out as they are sampled. Calls go out at the end, from the finished message: text may come after a
call, and belongs into the one text block before it. Thinking comes before text; where a model thinks again after it,
that is a block of its own here, and part of the first one in an answer without streaming.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from agentrl.gateway.deltas import Answer, Content, Piece, Reasoning, ToolCall, deltas_of
from agentrl.gateway.dialects.base import Responding, event
from agentrl.gateway.dialects.messages_input import input_json
from agentrl.gateway.dialects.messages_request import MessagesRequest
from agentrl.gateway.dialects.messages_response import (
    Signature,
    applied_edits,
    empty_message,
    error_object,
    stop_of,
    usage,
)
from agentrl.gateway.refusal import Refusal

EMPTY_BLOCKS: dict[type[Reasoning] | type[Content], dict[str, Any]] = {
    Reasoning: {"type": "thinking", "thinking": "", "signature": ""},
    Content: {"type": "text", "text": ""},
}


class MessagesStream:
    """A `StreamEncoder`. One block is open at a time; `_index` is that of the next one to be opened."""

    def __init__(self, request: MessagesRequest, responding: Responding) -> None:
        self._request = request
        self._responding = responding
        self._index = 0
        self._open: type[Reasoning] | type[Content] | None = None
        self._signature = Signature()

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        return _event({"type": "message_start", "message": empty_message(self._responding, len(prompt_ids))})

    def piece(self, choice: int, piece: Piece) -> bytes:
        return b"".join(self._text(delta) for delta in piece.deltas if not isinstance(delta, ToolCall) and delta.text)

    def end(self, answers: Sequence[Answer]) -> bytes:
        [answer] = answers
        events = [self._close()]
        for delta in deltas_of(answer.call.message):
            if isinstance(delta, ToolCall):
                block = {"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}}
                events.append(self._start(block))
                events.append(self._delta({"type": "input_json_delta", "partial_json": input_json(delta.arguments)}))
                events.append(self._stop())
        stop_reason, stop_sequence = stop_of(answer)
        last = {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence, "stop_details": None},
            "usage": usage(len(answer.call.prompt_token_ids), answer),
            **applied_edits(self._request),
        }
        return b"".join([*events, _event(last), _event({"type": "message_stop"})])

    def fail(self, refusal: Refusal) -> bytes:
        return _event(error_object(refusal))

    def keep_alive(self) -> bytes:
        return _event({"type": "ping"})

    def _text(self, delta: Reasoning | Content) -> bytes:
        opening = b""
        if type(delta) is not self._open:
            opening = self._close() + self._start(EMPTY_BLOCKS[type(delta)])
            self._open = type(delta)
        if isinstance(delta, Content):
            return opening + self._delta({"type": "text_delta", "text": delta.text})
        self._signature.add(delta.text)
        return opening + self._delta({"type": "thinking_delta", "thinking": delta.text})

    def _close(self) -> bytes:
        """Ends the open block, if there is one; a thinking block's signature is the last of it."""
        if self._open is None:
            return b""
        signed = b""
        if self._open is Reasoning:
            signed = self._delta({"type": "signature_delta", "signature": self._signature.text()})
            self._signature = Signature()
        self._open = None
        return signed + self._stop()

    def _start(self, block: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _stop(self) -> bytes:
        self._index += 1
        return _event({"type": "content_block_stop", "index": self._index - 1})


def _event(data: dict[str, Any]) -> bytes:
    return event(orjson.dumps(data), data["type"])
