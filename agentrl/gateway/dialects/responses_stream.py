"""A streamed response of the Responses API, as its events.

One item is open at a time, in the order that `output_items` gives them. Reasoning and text are streamed as they are
sampled. Calls, which come whole, follow the text when it is sure to have ended: with the end of the answer, which is
also when they are durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from agentrl.gateway.deltas import Answer, Content, Piece, Reasoning
from agentrl.gateway.dialects.base import Responding, event
from agentrl.gateway.dialects.responses_output import (
    Item,
    begun_response,
    failed_response,
    finished_response,
    message_item,
    output_text,
    reasoning_item,
    reasoning_text,
    renamed,
    token_logprobs,
    without_bytes,
)
from agentrl.gateway.dialects.responses_request import Asked
from agentrl.gateway.refusal import Refusal

Kind = Literal["reasoning", "message"]

TEXT_EVENTS: dict[Kind, str] = {"reasoning": "response.reasoning_text", "message": "response.output_text"}


@dataclass
class Opened:
    """An item with text that is being streamed, or was."""

    index: int
    id: str
    parts: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def text(self) -> str:
        return "".join(self.parts)


class ResponsesStream:
    """Makes a `StreamEncoder` of one response. Its last event holds what `encode` gives for the same answer."""

    def __init__(self, asked: Asked, responding: Responding) -> None:
        self._asked = asked
        self._responding = responding
        self._sequence = 0
        self._opened: dict[Kind, Opened] = {}
        self._num_items = 0
        self._logprobs: list[dict[str, Any]] = []  # of the tokens since the last text, when they were asked for

    def begin(self, prompt_ids: Sequence[int]) -> bytes:
        response = begun_response(self._asked, self._responding)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def piece(self, choice: int, piece: Piece) -> bytes:
        if self._asked.request.wants_logprobs:
            self._logprobs += token_logprobs(piece.token_ids, piece.logprobs, piece.top_logprobs, self._responding)
        events: list[bytes] = []
        for delta in piece.deltas:
            if isinstance(delta, Reasoning):
                events += self._text("reasoning", delta.text)
            elif isinstance(delta, Content):
                events += self._text("message", delta.text)
        return b"".join(events)

    def end(self, answers: Sequence[Answer]) -> bytes:
        response = finished_response(answers[0], self._asked, self._responding)
        events: list[bytes] = []
        for item in response["output"]:
            if item["type"] == "function_call":
                events += self._call(item)
            else:
                events += self._close(item["type"], item)
        events.append(self._event(f"response.{response['status']}", response=response))
        return b"".join(events)

    def fail(self, refusal: Refusal) -> bytes:
        """`response.failed` is for who reads events; the `error` object makes SDKs raise."""
        refusal = renamed(refusal)
        response = failed_response(refusal, self._asked, self._responding)
        error = {"code": refusal.code, "message": refusal.message, "param": refusal.param}
        failed = self._event("response.failed", response=response)
        return failed + self._event("error", **error, error=error | {"type": response["error"]["code"]})

    def keep_alive(self) -> bytes:
        return b": keep-alive\n\n"

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = msgspec.json.encode({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return event(data, kind)

    def _text(self, kind: Kind, text: str) -> list[bytes]:
        """Reasoning that comes late, after text, goes on in its item, which is then done a second time."""
        if not text:
            return []
        events: list[bytes] = []
        if kind not in self._opened:
            if kind == "message":
                events += self._end_reasoning()
            events += self._open(kind)
        opened = self._opened[kind]
        opened.closed = False
        opened.parts.append(text)
        extra: dict[str, Any] = {}
        if kind == "message":
            extra["logprobs"], self._logprobs = without_bytes(self._logprobs), []
        events.append(self._event(f"{TEXT_EVENTS[kind]}.delta", **self._place(opened), delta=text, **extra))
        return events

    def _open(self, kind: Kind) -> list[bytes]:
        response_id = self._responding.response_id
        if kind == "reasoning":
            item, part = reasoning_item(response_id, "in_progress"), reasoning_text("")
        else:
            item, part = message_item(response_id, "in_progress"), output_text("", [])
        opened = self._opened[kind] = Opened(self._num_items, item["id"])
        self._num_items += 1
        return [
            self._event("response.output_item.added", output_index=opened.index, item=item),
            self._event("response.content_part.added", **self._place(opened), part=part),
        ]

    def _end_reasoning(self) -> list[bytes]:
        opened = self._opened.get("reasoning")
        if opened is None:
            return []
        return self._close("reasoning", reasoning_item(self._responding.response_id, "completed", opened.text))

    def _close(self, kind: Kind, item: Item) -> list[bytes]:
        """The end of an item that is now `item`; what of its text was not in a piece comes before it."""
        [part] = item["content"]
        events: list[bytes] = [] if kind in self._opened else self._open(kind)
        opened = self._opened[kind]
        if part["text"].startswith(opened.text):
            events += self._text(kind, part["text"][len(opened.text) :])
        if opened.closed:
            return events
        opened.closed = True
        extra = {"logprobs": without_bytes(part["logprobs"])} if kind == "message" else {}
        return [
            *events,
            self._event(f"{TEXT_EVENTS[kind]}.done", **self._place(opened), text=part["text"], **extra),
            self._event("response.content_part.done", **self._place(opened), part=part),
            self._event("response.output_item.done", output_index=opened.index, item=item),
        ]

    def _call(self, item: Item) -> list[bytes]:
        place = {"item_id": item["id"], "output_index": self._num_items}
        self._num_items += 1
        begun = item | {"arguments": "", "status": "in_progress"}
        events = [self._event("response.output_item.added", output_index=place["output_index"], item=begun)]
        if item["arguments"]:
            events.append(self._event("response.function_call_arguments.delta", **place, delta=item["arguments"]))
        return [
            *events,
            self._event("response.function_call_arguments.done", **place, arguments=item["arguments"]),
            self._event("response.output_item.done", output_index=place["output_index"], item=item),
        ]

    def _place(self, opened: Opened) -> dict[str, Any]:
        return {"item_id": opened.id, "output_index": opened.index, "content_index": 0}
