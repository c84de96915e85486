"""What engines sampled for one call, joined from their chunks, and the call record that follows from it.

An engine may die in the middle; another then goes on from prompt + tokens so far. Each engine's part is a segment.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.digest import RunningDigest
from agentrl.gateway.graph import untrainable_reason
from agentrl.gateway.refusal import Refusal
from agentrl.types import Call, FinishReason, Sampling, Segment, TokenChunk, VersionSpan

TopLogprobs = list[list[tuple[int, float]]]


class Sample:
    """Made when the request first leaves for an engine. `sampling` is that of the whole call.

    `begun` is the digest of a prompt that this one begins with.
    """

    def __init__(self, prompt_ids: list[int], sampling: Sampling, begun: RunningDigest | None = None) -> None:
        self.prompt_ids = prompt_ids
        self.prompt_digest = (begun or RunningDigest()).to(prompt_ids)
        self.sampling = sampling
        self.started_at = time.time()
        self.moments: list[int] = []  # as in `Call`
        self.token_ids: list[int] = []
        self.logprobs: list[float] | None = []
        self.top_logprobs: TopLogprobs | None = []
        self.finish_reason: FinishReason = "abort"
        self.stop_reason: str | int | None = None
        self.segments: list[Segment] = []  # of engines that are done
        self._versions: list[VersionSpan] | None = []  # over the tokens of `segments`; None when some are unknown
        self._begun = 0  # where the present engine's tokens begin

    @property
    def num_left(self) -> int | None:
        """Tokens that may still be sampled; None is no limit."""
        limit = self.sampling.max_tokens
        return None if limit is None else limit - len(self.token_ids)

    @property
    def newest_version(self) -> int | None:
        """Of the tokens of engines that are done. Going on with an older one would put versions out of order."""
        return self._versions[-1].version if self._versions else None

    def mark(self) -> None:
        """The next of its moments is now."""
        self.moments.append(int((time.time() - self.started_at) * 1e6))

    def lost(self) -> None:
        """Its engine was lost now, before its first token or after."""
        self.mark()
        if len(self.moments) % 3 == 2:
            self.moments.append(self.moments[-1])

    def add(self, chunk: TokenChunk) -> None:
        self.token_ids += chunk.token_ids
        if chunk.logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += chunk.logprobs
        if chunk.top_logprobs is None:
            self.top_logprobs = None
        elif self.top_logprobs is not None:
            self.top_logprobs += chunk.top_logprobs

    def cut(self, length: int) -> TokenChunk:
        """Takes back the tokens from `length` on, which nobody is given, and returns them."""
        rest = TokenChunk(token_ids=self.token_ids[length:], logprobs=None)
        if self.logprobs is not None:
            rest = msgspec.structs.replace(rest, logprobs=self.logprobs[length:])
            del self.logprobs[length:]
        if self.top_logprobs is not None:
            del self.top_logprobs[length:]
        del self.token_ids[length:]
        return rest

    def end_segment(self, engine_id: str, versions: Sequence[VersionSpan] | None, started_version: int | None) -> None:
        """The engine is done with this call: it ended it, or it is lost.

        `versions` are its spans over the tokens of this segment, and of some beyond where it was cut. Without them
        (None) its tokens count as of `started_version`, the oldest that it can have served meanwhile.
        """
        begun, length = self._begun, len(self.token_ids)
        self._begun = length
        if length > begun:
            self.segments.append(Segment(engine_id, begun, length))
        if versions is None and length > begun:
            versions = [] if started_version is None else [VersionSpan(started_version, 0, length - begun)]
        if self._versions is None or (not versions and length > begun):
            self._versions = None
            return
        for span in versions or ():
            start, end = span.start + begun, min(span.end + begun, length)
            if end <= start:
                break
            last = self._versions[-1] if self._versions else None
            if last is not None and last.version == span.version:
                self._versions[-1] = VersionSpan(span.version, last.start, end)
            else:
                self._versions.append(VersionSpan(span.version, start, end))

    def call(
        self,
        call_id: str,
        message: dict[str, Any],
        *,
        engine_id: str,
        parent: int | None,
        untrainable: str | None = None,
    ) -> Call:
        """The record. `untrainable` is a reason known from elsewhere."""
        versions = self._versions or []
        reason = untrainable or untrainable_reason(self.token_ids, self.logprobs, versions)
        return Call(
            call_id=call_id,
            prompt_token_ids=self.prompt_ids,
            prompt_digest=self.prompt_digest.hex,
            token_ids=self.token_ids,
            logprobs=self.logprobs if reason is None else None,
            versions=versions,
            finish_reason=self.finish_reason,
            engine_id=engine_id,
            sampling=self.sampling,
            message=message,
            parent=parent,
            untrainable=reason,
            segments=self.segments if len(self.segments) > 1 else [],
            started_at=self.started_at,
            ended_at=time.time(),
            moments=self.moments,
        )


def fit(sampling: Sampling, num_prompt: int, context_length: int | None, tokens_left: int | None) -> Sampling:
    """`max_tokens` clamped to what the engine's context and the session's limit leave.

    Raises Refusal (context_length_exceeded) when not even one token fits.
    """
    room = None if context_length is None else context_length - num_prompt
    if room is not None and room < 1:
        message = (
            f"the prompt has {num_prompt} tokens and the engine's context is {context_length}, which leaves no "
            "room to answer; shorten the conversation"
        )
        raise Refusal(400, "context_length_exceeded", message, param="messages")
    bounds = [bound for bound in (sampling.max_tokens, room, tokens_left) if bound is not None]
    bound = min(bounds, default=None)
    return sampling if bound == sampling.max_tokens else msgspec.structs.replace(sampling, max_tokens=bound)
