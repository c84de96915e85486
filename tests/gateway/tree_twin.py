"""An engine in memory for the tests of random trees. It does as a vLLM server does, writes down all that it was given
and all that it sampled, and gives every token a logprob that no other token has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from template_families import TemplateFamily

from agentrl.errors import EngineError, EngineUnavailable
from agentrl.types import FinishReason, Sampling, TokenChunk, VersionSpan

Failing = Literal["die", "abort", "error", "swap"]
Spoiling = Literal["no_logprobs", "nan_logprobs", "wrong_spans"]
ROOM = 20_000
"""Tokens of the engine's context."""


@dataclass(frozen=True)
class Fault:
    """Once `after` tokens were sent: the connection breaks, the engine aborts or breaks its contract, or the weights
    are swapped under the request, which goes on."""

    kind: Failing
    after: int


@dataclass(frozen=True)
class Reply:
    """What is sampled for one prompt, over as many engines as it takes; one fault for each of the first of them."""

    token_ids: tuple[int, ...]
    finish: FinishReason = "stop"  # where the tokens have no end themselves; "stop" adds EOS
    per_chunk: int = 1
    ticks: int = 0  # rounds of the event loop before each chunk
    faults: tuple[Fault, ...] = ()
    spoil: Spoiling | None = None


@dataclass
class Run:
    """One request to one engine. What was `given_out` was taken by the gateway; nothing else counts as sampled."""

    engine: str
    request_id: str
    prompt_ids: list[int]
    sampling: Sampling
    begun_with: int  # version of the weights
    spoil: Spoiling | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)  # the true ones, spoilt or not
    versions: list[int] = field(default_factory=list)
    ended: bool = False  # by itself, as the gateway was told
    told_versions: bool = False
    told_wrong_spans: bool = False

    @property
    def known_versions(self) -> list[int]:
        """Of its tokens, as far as anybody but the engine can know: else the oldest that can have sampled them."""
        return self.versions if self.told_versions else [self.begun_with] * len(self.token_ids)


@dataclass
class World:
    """What the engines share: the replies, in order, and the books."""

    family: TemplateFamily
    version: int = 0
    replies: list[Reply] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    on_swap: Callable[[int], None] = lambda version: None
    _rest: dict[tuple[int, ...], list[Reply]] = field(default_factory=dict)  # of replies that were broken off
    _num_tokens: int = 0

    def swap(self) -> None:
        self.version += 1
        self.on_swap(self.version)

    def reply_to(self, prompt_ids: Sequence[int]) -> Reply:
        if left := self._rest.get(tuple(prompt_ids)):
            return left.pop(0)
        return self.replies.pop(0) if self.replies else Reply(())

    def broken_off(self, run: Run, reply: Reply) -> None:
        rest = replace(reply, token_ids=reply.token_ids[len(run.token_ids) :], faults=reply.faults[1:])
        self._rest.setdefault((*run.prompt_ids, *run.token_ids), []).append(rest)

    def new_logprob(self) -> float:
        self._num_tokens += 1
        return -self._num_tokens / 2**20


class TwinEngine:
    """`agentrl.gateway.ports.EngineClient`."""

    def __init__(self, url: str, world: World) -> None:
        self.url = url
        self._world = world

    async def stream(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, version: int | None = None
    ) -> AsyncGenerator[TokenChunk]:
        world = self._world
        reply = world.reply_to(prompt_ids)
        run = Run(self.url, request_id, list(prompt_ids), sampling, world.version, reply.spoil)
        world.runs.append(run)
        whole, finish, stop_reason = self._sampled(reply, sampling)
        fault = reply.faults[0] if reply.faults and reply.faults[0].after <= len(whole) else None
        at = 0
        while True:
            for _ in range(reply.ticks + 1):
                await asyncio.sleep(0)
            if fault is not None and fault.kind == "swap" and at >= fault.after:
                fault = None
                world.swap()
            if fault is not None and at == fault.after:
                world.broken_off(run, reply)
                if fault.kind == "abort":
                    yield self._chunk(run, [], "abort", None)
                    return
                raise EngineUnavailable("it died") if fault.kind == "die" else EngineError("it sent nonsense")
            end = min(at + reply.per_chunk, len(whole))
            if fault is not None and at < fault.after:
                end = min(end, fault.after)
            is_last = end == len(whole) and fault is None
            yield self._chunk(run, whole[at:end], finish if is_last else None, stop_reason if is_last else None)
            if is_last:
                return
            at = end

    async def version(self) -> int:
        return self._world.version

    async def healthy(self) -> bool:
        return True

    async def context_length(self) -> int:
        return ROOM

    async def close(self) -> None:
        pass

    def _sampled(self, reply: Reply, sampling: Sampling) -> tuple[list[int], FinishReason, str | int | None]:
        """The reply up to where this request ends it, why, and by what."""
        family = self._world.family
        eos, limit = family.id(family.eos), sampling.max_tokens
        sampled: list[int] = []
        for token_id in [*reply.token_ids, *([eos] if reply.finish == "stop" else [])]:
            if limit is not None and len(sampled) == limit:
                return sampled, "length", None
            sampled.append(token_id)
            if token_id == eos or token_id in sampling.stop_token_ids:
                return sampled, "stop", None if token_id == eos else token_id
            text = family.decoded(sampled) if sampling.stop else ""
            if found := next((stop for stop in sampling.stop if stop in text), None):
                return sampled, "stop", found
        return sampled, "length", None

    def _chunk(
        self, run: Run, token_ids: list[int], finish: FinishReason | None, stop_reason: str | int | None
    ) -> TokenChunk:
        logprobs = [self._world.new_logprob() for _ in token_ids]
        run.token_ids += token_ids
        run.logprobs += logprobs
        run.versions += [self._world.version] * len(token_ids)
        versions = None
        if finish is not None:
            run.ended, run.told_versions = finish != "abort", run.spoil != "wrong_spans"
            run.told_wrong_spans = not run.told_versions
            versions = [] if run.spoil == "wrong_spans" else _spans(run.versions)
        told: list[float] | None = logprobs
        if run.spoil == "no_logprobs" and token_ids:
            told = None
        elif run.spoil == "nan_logprobs":
            told = [float("nan")] * len(token_ids)
        return TokenChunk(
            token_ids=token_ids, logprobs=told, finish_reason=finish, stop_reason=stop_reason, versions=versions
        )


def _spans(versions: Sequence[int]) -> list[VersionSpan]:
    starts = [i for i in range(len(versions)) if i == 0 or versions[i] != versions[i - 1]]
    ends = [*starts[1:], len(versions)]
    return [VersionSpan(versions[start], start, end) for start, end in zip(starts, ends, strict=False)]
