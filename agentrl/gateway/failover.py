"""Samples one choice to its end, over as many engines as it takes.

When an engine dies, stalls or is held back, the next one goes on from prompt + tokens so far: the client sees nothing
of it, and no token is lost, repeated or sampled twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing

import msgspec

from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.generation import Generation
from agentrl.gateway.metrics import Metrics
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.routing import EngineState
from agentrl.gateway.sample import Sample, fit
from agentrl.gateway.session import Session
from agentrl.types import Sampling

ATTEMPTS = 3
"""Engines in a row that may fail a call without giving it a token."""


UNHEARD_INTERVAL = 128
"""Tokens in one piece of an answer that is not streamed: what is sampled again when its engine dies."""


class Sampler:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def run(self, pool_of: Callable[[], EnginePool], session: Session, generation: Generation) -> str:
        """Returns the id of the engine that ended it. Raises Refusal.

        What was sampled until a Refusal or a cancellation is in `generation.sample`.
        """
        fruitless = moves = 0
        request_id = generation.plan.call_id
        while True:
            pool = pool_of()
            try:
                engine = await self._acquire(pool, session, generation)
            except Refusal as refusal:
                if refusal.code == "stopping" and pool_of() is not pool:
                    continue  # the run's own engines are gone, and others serve it now
                raise
            generation.sample.mark()
            begun = len(generation.sample.token_ids)
            try:
                await self._on(pool, engine, session, generation, request_id)
                return engine.id
            except EngineUnavailable as error:
                generation.sample.lost()
                moves += 1
                if not pool.is_withdrawn(engine):
                    fruitless = fruitless + 1 if len(generation.sample.token_ids) == begun else 0
                if fruitless == ATTEMPTS:
                    message = f"{ATTEMPTS} engines in a row failed this call; last: {error}"
                    raise Refusal(503, "engine_lost", message, retry_after=1) from error
                if generation.ends_here():
                    return engine.id
                self._lose(generation)
                request_id = f"{generation.plan.call_id}-go{len(generation.sample.segments)}-{moves}"
            finally:
                pool.release(engine)

    async def _acquire(self, pool: EnginePool, session: Session, generation: Generation) -> EngineState:
        return await pool.acquire(
            session.id,
            prompt_ids=generation.plan.prompt_ids,
            at_least=generation.sample.newest_version,
            exactly=session.version if session.pinned else None,
        )

    def _lose(self, generation: Generation) -> None:
        """Prepares to go on elsewhere. Raises Refusal where that cannot be done."""
        kept = len(generation.sample.token_ids)
        if generation.sample.sampling.constraint is not None and kept:
            message = "the engine of this constrained answer was lost, and no other knows how far the grammar had come"
            raise Refusal(503, "engine_lost", message, retry_after=None if generation.heard else 1)
        self._metrics.failovers.labels("continued" if kept else "begun anew").inc()
        self._metrics.kept_tokens.inc(kept)

    async def _on(
        self, pool: EnginePool, engine: EngineState, session: Session, generation: Generation, request_id: str
    ) -> None:
        """Raises EngineUnavailable when another engine should go on."""
        sample, version = generation.sample, engine.version
        if session.pinned and session.version is None:
            session.version = version
        prompt_ids = sample.prompt_ids + sample.token_ids if sample.token_ids else sample.prompt_ids
        num_sampled = len(sample.token_ids)
        if not num_sampled:
            session.check_tokens()  # calls that were answered while this one waited may have used them up
        sample.sampling = fit(sample.sampling, len(sample.prompt_ids), engine.context_length, _left(session, sample))
        rest = _rest(sample.sampling, num_sampled)
        if rest.max_tokens is not None and rest.max_tokens <= 0:  # its context is smaller than the last one's, say
            sample.finish_reason = "length"
            return
        if not generation.eager:  # each piece costs both sides, and nobody waits for one
            rest = msgspec.structs.replace(rest, stream_interval=UNHEARD_INTERVAL)
        versions, aborted = None, False
        try:
            async with pool.client(engine) as client:
                stream = client.stream(prompt_ids, rest, request_id=request_id, version=version)
                async with aclosing(stream) as chunks:
                    async for chunk in chunks:
                        if len(sample.token_ids) == num_sampled and chunk.token_ids:
                            pool.answering(engine)
                            sample.mark()
                        generation.add(chunk, session.tokens_left)
                        versions, aborted = chunk.versions, chunk.finish_reason == "abort"
                        if generation.ended and chunk.finish_reason is None:
                            break  # closing the stream aborts it
            pool.succeeded(engine)
        except EngineUnavailable as error:
            pool.failed(engine, error)
            raise
        except ContextOverflow as error:
            raise Refusal(400, "context_length_exceeded", str(error), param="messages") from error
        except EngineError as error:
            if len(sample.token_ids) > num_sampled:  # it broke its contract; what it refuses is the request's fault
                pool.failed(engine, error)
            raise Refusal(502, "engine_error", str(error)) from error
        finally:
            sample.end_segment(engine.id, versions, version)
        if aborted:  # during a pause, say: of its health that says nothing
            raise EngineUnavailable(f"engine {engine.id} aborted the request")
        if session.pinned and sample.newest_version not in (None, session.version):
            raise _version_changed(session, sample.newest_version)


def _left(session: Session, sample: Sample) -> int | None:
    """Tokens that the whole call may have; those it has already are counted as used."""
    left = session.tokens_left
    return None if left is None else left + len(sample.token_ids)


def _rest(sampling: Sampling, num_sampled: int) -> Sampling:
    if not num_sampled or sampling.max_tokens is None:
        return sampling
    return msgspec.structs.replace(sampling, max_tokens=sampling.max_tokens - num_sampled)


def _version_changed(session: Session, version: int | None) -> Refusal:
    message = (
        f"session {session.id} is an evaluation of version {session.version} and version {version} answered; open it "
        "with across_swaps to allow that"
    )
    return Refusal(409, "version_changed", message)
