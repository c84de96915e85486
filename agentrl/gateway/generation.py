"""One choice while it is being sampled: its sample, what has been read of it, and where it has to end. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from msgspec import Struct

from agentrl.digest import RunningDigest
from agentrl.gateway.deltas import Answer, Delta, Piece
from agentrl.gateway.reader import Reader
from agentrl.gateway.sample import Sample
from agentrl.types import Call, Sampling, TokenChunk


class Rendering(Struct, frozen=True):
    """What a chat template was given."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    template_kwargs: dict[str, Any]


class Plan(Struct, kw_only=True):
    """A choice that is ready to leave for an engine. Made by the planner."""

    call_id: str
    parent: int | None
    prompt_ids: list[int]
    sampling: Sampling
    new_reader: Callable[[], Reader]
    conversation: bytes | None = None  # key of the request's messages; None for a raw prompt
    messages: list[dict[str, Any]] = []  # those that are not in the parent's conversation
    end_ids: Set[int] = frozenset()  # tokens that end a turn
    branch: str = ""  # why it continues nothing, in a session that has calls
    rendering: Rendering | None = None  # None for a raw prompt
    begun: RunningDigest | None = None  # of the parent's prompt, where it is known


class Generation:
    """`listener` hears every piece as it comes; without one, reading waits until it is needed (not `eager`)."""

    def __init__(self, plan: Plan, sampling: Sampling, listener: Callable[[Piece], None] | None) -> None:
        self.plan = plan
        self.sample = Sample(plan.prompt_ids, sampling, plan.begun)
        self.overrun: TokenChunk | None = None  # sampled beyond the end, given to nobody
        self.overrun_reason = ""
        self._listener = listener
        self._reader = plan.new_reader()
        self.eager = listener is not None or self._reader.may_end

    @property
    def heard(self) -> bool:
        """Whether anybody was given some of it already, so that it cannot begin anew."""
        return self._listener is not None and bool(self.sample.token_ids)

    @property
    def ended(self) -> bool:
        return self.sample.finish_reason != "abort"

    def add(self, chunk: TokenChunk, tokens_left: int | None) -> None:
        """Takes a chunk; `tokens_left` are those that the session may still be given.

        It may end the sample: at a stop string that began before an engine was lost, behind the one call that was
        wanted, or at a limit that calls in parallel have used up meanwhile. What was sampled beyond is the overrun.
        """
        sample, begun = self.sample, len(self.sample.token_ids)
        sample.add(chunk)
        if tokens_left is not None and len(chunk.token_ids) > tokens_left:
            self._end_at(begun + tokens_left, "length", "past_limit")
        elif chunk.finish_reason is not None:
            sample.finish_reason, sample.stop_reason = chunk.finish_reason, chunk.stop_reason
        deltas: list[Delta] = []
        if self.eager:
            deltas = self._reader.feed(sample.token_ids[begun:])
            if self._reader.ended and self._reader.num_read < len(sample.token_ids):
                self._end_at(self._reader.num_read, "stop", "past_stop")
            if self._reader.ended and sample.finish_reason in ("abort", "length"):
                sample.finish_reason, sample.stop_reason = "stop", self._reader.stop
        if self._listener is not None and len(sample.token_ids) > begun:
            self._listener(self._piece(begun, deltas))

    def ends_here(self) -> bool:
        """Whether the tokens of an engine that was lost are all there is: it had no time to say so."""
        sample = self.sample
        if sample.token_ids and sample.token_ids[-1] in self.plan.end_ids:
            sample.finish_reason = "stop"
        elif sample.num_left == 0:
            sample.finish_reason = "length"
        return self.ended

    def finish(self) -> None:
        """Reads what is left. Call it once, when the sample has ended."""
        if not self.eager:
            self._reader.feed(self.sample.token_ids)
        deltas = self._reader.finish(stopped=self.sample.finish_reason == "stop")
        if self._listener is not None and deltas:
            self._listener(self._piece(len(self.sample.token_ids), deltas))

    def answer(self, call: Call, *, count_reasoning: Callable[[list[int], int], int]) -> Answer:
        """`count_reasoning(token_ids, characters)`: how many of the tokens hold the first so many characters."""
        end = self._reader.reasoning_end
        return Answer(
            call=call,
            logprobs=self.sample.logprobs,
            top_logprobs=self.sample.top_logprobs if self.sample.sampling.top_logprobs else None,
            stop=self._reader.stop,
            reasoning_tokens=count_reasoning(call.token_ids, end) if end else 0,
        )

    def message(self) -> dict[str, Any]:
        return self._reader.message()

    def _end_at(self, length: int, finish_reason: str, reason: str) -> None:
        rest = self.sample.cut(length)
        if rest.token_ids:
            self.overrun = rest if self.overrun is None else _joined(rest, self.overrun)
            self.overrun_reason = reason
        self.sample.finish_reason = "stop" if finish_reason == "stop" else "length"

    def _piece(self, begun: int, deltas: list[Delta]) -> Piece:
        sample = self.sample
        top = sample.top_logprobs[begun:] if sample.top_logprobs and sample.sampling.top_logprobs else None
        return Piece(
            token_ids=sample.token_ids[begun:],
            logprobs=None if sample.logprobs is None else sample.logprobs[begun:],
            top_logprobs=top,
            deltas=deltas,
        )


def _joined(first: TokenChunk, second: TokenChunk) -> TokenChunk:
    logprobs = None if first.logprobs is None or second.logprobs is None else first.logprobs + second.logprobs
    return TokenChunk(token_ids=first.token_ids + second.token_ids, logprobs=logprobs)
