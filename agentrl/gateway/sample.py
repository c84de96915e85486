"""What one engine sampled for one call, joined from its chunks, and the call record that follows from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.digest import digest_of
from agentrl.gateway.graph import untrainable_reason
from agentrl.gateway.refusal import Refusal
from agentrl.types import Call, FinishReason, Sampling, TokenChunk, VersionSpan


class Sample:
    """Made when the request leaves for the engine; `started_version` is the oldest version its tokens can have."""

    def __init__(
        self, prompt_ids: list[int], sampling: Sampling, *, engine_id: str, started_version: int | None
    ) -> None:
        self.prompt_ids = prompt_ids
        self.prompt_digest = digest_of(prompt_ids)
        self.sampling = sampling
        self.engine_id = engine_id
        self.started_version = started_version
        self.started_at = time.time()
        self.token_ids: list[int] = []
        self.logprobs: list[float] | None = []
        self.versions: list[VersionSpan] | None = None
        self.finish_reason: FinishReason = "abort"
        self.stop_reason: str | int | None = None

    def add(self, chunk: TokenChunk) -> None:
        self.token_ids += chunk.token_ids
        if chunk.logprobs is None:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += chunk.logprobs
        if chunk.finish_reason is not None:
            self.finish_reason = chunk.finish_reason
            self.stop_reason = chunk.stop_reason
            self.versions = chunk.versions

    def call(
        self,
        call_id: str,
        message: dict[str, Any],
        *,
        parent: int | None,
        engine_version: int | None,
        untrainable: str | None = None,
    ) -> Call:
        """The record. `engine_version` is what the engine serves now; `untrainable` a reason known from elsewhere."""
        versions = self._spans(engine_version, ended=untrainable is None)
        reason = untrainable or untrainable_reason(self.token_ids, self.logprobs, versions)
        return Call(
            call_id=call_id,
            prompt_token_ids=self.prompt_ids,
            prompt_digest=self.prompt_digest,
            token_ids=self.token_ids,
            logprobs=self.logprobs if reason is None else None,
            versions=versions,
            finish_reason=self.finish_reason,
            engine_id=self.engine_id,
            sampling=self.sampling,
            message=message,
            parent=parent,
            untrainable=reason,
            started_at=self.started_at,
            ended_at=time.time(),
        )

    def _spans(self, engine_version: int | None, *, ended: bool) -> list[VersionSpan]:
        """The engine's spans. Without them: the oldest version it can have been, where that is known for sure.

        A sample that ended well with no spans across a swap has none, which makes it untrainable.
        """
        if self.versions is not None:
            return self.versions
        start = self.started_version
        if start is None or not self.token_ids or (ended and engine_version != start):
            return []
        return [VersionSpan(start, 0, len(self.token_ids))]


def fit(sampling: Sampling, prompt_ids: Sequence[int], context_length: int | None, tokens_left: int | None) -> Sampling:
    """`max_tokens` clamped to what the engine's context and the session's limit leave.

    Raises Refusal (context_length_exceeded) when not even one token fits.
    """
    room = None if context_length is None else context_length - len(prompt_ids)
    if room is not None and room < 1:
        message = (
            f"the prompt has {len(prompt_ids)} tokens and the engine's context is {context_length}, which leaves no "
            "room to answer; shorten the conversation"
        )
        raise Refusal(400, "context_length_exceeded", message, param="messages")
    bounds = [bound for bound in (sampling.max_tokens, room, tokens_left) if bound is not None]
    return msgspec.structs.replace(sampling, max_tokens=min(bounds, default=None))
