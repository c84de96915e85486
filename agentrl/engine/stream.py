"""The bytes of one streamed generation → `TokenChunk`s. No I/O.

What one read brought becomes one chunk as long as everything in it is right, which is cheap. The first time that
something is not, that read is gone through event by event, so that each error and each missing logprob is told exactly.
"""

from __future__ import annotations

import logging
import reprlib
from typing import Any, NoReturn, get_args

from msgspec import Raw

from agentrl.engine import wire
from agentrl.errors import EngineError, EngineUnavailable
from agentrl.types import FinishReason, TokenChunk, VersionSpan

logger = logging.getLogger(__name__)

MAX_EVENT_BYTES = 64 * 2**20
"""Of one event that has not ended yet; an event of a million tokens has about 150 bytes for each."""

PREFIX = b"data: "  # as vLLM writes it
BETWEEN = b"\n\n" + PREFIX
DONE = b"[DONE]"


class GenerationReader:
    """Feed it what came, hand its chunks on, and then look at `failure` and `done`; it takes nothing after either.

    Tokens that came with something wrong are handed on all the same: they were sampled, so they count.
    `source` is the engine's URL.
    """

    def __init__(self, source: str, *, max_tokens: int, top_logprobs: int) -> None:
        self.num_tokens = 0
        self.done = False  # the last chunk has come
        self.failure: EngineError | None = None
        self._source = source
        self._max_tokens = max_tokens
        self._top_logprobs = top_logprobs
        self._honest = True  # false from the first bad logprob on: the generation as a whole is untrainable
        self._pending = b""  # the beginning of an event

    def feed(self, received: bytes) -> list[TokenChunk]:
        data = self._pending + received
        end = data.rfind(b"\n\n")
        self._pending = data[end + 2 :] if end >= 0 else data
        if len(self._pending) > MAX_EVENT_BYTES:
            self.failure = EngineError(
                f"engine {self._source} sent {len(self._pending)} bytes without the end of an event; "
                f"at most {MAX_EVENT_BYTES} are read"
            )
            return []
        if end < 0:
            return []
        data = data[:end]
        if self._honest and not self._top_logprobs and (chunk := self._whole(data)) is not None:
            return [chunk]
        return self._one_by_one(data.split(b"\n\n"))

    def end(self) -> None:
        """No more will come."""
        if not self.done and self.failure is None:
            self.failure = EngineUnavailable(
                f"engine {self._source} ended a stream after {self.num_tokens} tokens without a finish reason"
            )

    def _whole(self, data: bytes) -> TokenChunk | None:
        """One chunk of all events; None, and nothing is changed, unless all of them are right."""
        first, *events = data.split(BETWEEN)  # a longer border is found faster than the two line ends
        events.insert(0, first.removeprefix(PREFIX))
        ended = events[-1] == DONE
        if ended:
            events.pop()
        if not first.startswith(PREFIX) or not (choices := wire.good_choices(events)):
            return None
        last = choices[-1]
        token_ids = [token_id for choice in choices for token_id in choice.token_ids]
        reasons = [choice.finish_reason for choice in choices if choice.finish_reason is not None]
        num_tokens = self.num_tokens + len(token_ids)
        if num_tokens > self._max_tokens or len(reasons) > 1 or (ended and not reasons):
            return None
        if reasons and last.finish_reason is None:
            return None
        self.num_tokens, self.done = num_tokens, bool(reasons)
        return TokenChunk(
            token_ids=token_ids,
            logprobs=[entry.logprob for choice in choices if choice.logprobs for entry in choice.logprobs.content],
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason if self.done else None,
            versions=self._versions(last.weight_versions) if self.done else None,
        )

    def _one_by_one(self, events: list[bytes]) -> list[TokenChunk]:
        chunks: list[TokenChunk] = []
        try:
            for event in events:
                data = event.removeprefix(b"data:").strip()
                if data == DONE:
                    self.end()
                    break
                if data and not event.startswith(b":"):  # a colon starts a keep-alive comment
                    self._event(data, chunks)
                if self.done:
                    break
        except EngineError as error:
            self.failure = error
        return chunks

    def _event(self, data: bytes, chunks: list[TokenChunk]) -> None:
        event = wire.decode(data, wire.Event, source=self._source)
        if isinstance(event.error, Raw):
            self._raise_stream_error(event.error)
        for choice in event.choices:
            self._choice(choice, chunks)
            if self.done:
                return

    def _choice(self, choice: wire.Choice, chunks: list[TokenChunk]) -> None:
        token_ids = choice.token_ids or []
        if not token_ids and (unnamed := wire.num_logprobs(choice.logprobs)):
            raise EngineError(f"engine {self._source} gave {unnamed} logprobs of tokens whose ids it left out")
        self.num_tokens += len(token_ids)
        logprobs = wire.checked_logprobs(token_ids, choice.logprobs) if self._honest else None
        self._honest = logprobs is not None
        top = wire.top_logprobs(choice.logprobs, self._top_logprobs) if self._top_logprobs else None
        fault = _fault(choice, self.num_tokens, self._max_tokens)
        if choice.finish_reason is None or fault:
            chunks.append(TokenChunk(token_ids=token_ids, logprobs=logprobs, top_logprobs=top))
            if fault:
                raise EngineError(f"engine {self._source} {fault}")
            return
        self.done = True
        chunks.append(
            TokenChunk(
                token_ids=token_ids,
                logprobs=logprobs,
                top_logprobs=top,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                versions=self._versions(choice.weight_versions),
            )
        )

    def _versions(self, spans: Any) -> list[VersionSpan]:
        """The spans of a generation, none at all when they are wrong: its tokens are then untrainable and counted."""
        try:
            return wire.checked_spans(spans, self.num_tokens)
        except EngineError as error:
            logger.warning("a generation of engine %s is untrainable: %s", self._source, error)
            return []

    def _raise_stream_error(self, error: Raw) -> NoReturn:
        """vLLM validates prompts only after the stream has begun, so a bad request may arrive as an event."""
        message = f"engine {self._source} failed inside a generation: {beginning(bytes(error))}"
        raise EngineUnavailable(message) if wire.may_pass(error) else EngineError(message)


def beginning(body: bytes) -> str:
    """Of an answer, for an error message."""
    return body[:500].decode(errors="replace")


def _fault(choice: wire.Choice, num_tokens: int, max_tokens: int) -> str | None:
    if num_tokens > max_tokens:
        return f"sampled {num_tokens} tokens; max_tokens was {max_tokens}"
    if choice.finish_reason not in (None, *get_args(FinishReason)):
        return f"ended a generation with {reprlib.repr(choice.finish_reason)}, which is unknown"
    if not isinstance(choice.stop_reason, str | int | None):
        return f"gave {reprlib.repr(choice.stop_reason)} as stop_reason; expected a string or a token id"
    return None
