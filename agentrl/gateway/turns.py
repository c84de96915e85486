"""One model call, whatever the dialect: messages → ids → an engine → message, recorded in the session's graph."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from msgspec import Struct

from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable
from agentrl.gateway.canonical import conversation_keys, extend_key
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.metrics import Metrics
from agentrl.gateway.parse import assistant_message, trim_at_stop
from agentrl.gateway.refusal import Refusal, invalid
from agentrl.gateway.render import Renderer, RenderError
from agentrl.gateway.routing import EngineState
from agentrl.gateway.sample import Sample, fit
from agentrl.gateway.sampling import effective
from agentrl.gateway.session import SEAL_S, Session, sealed
from agentrl.types import Call, Sampling

ATTEMPTS = 3
"""Engines tried for one call. What a lost engine had sampled is recorded as an untrainable call of its own."""

LARGE_BODY = 200_000
"""Bytes of a request from which on encoding it, some microseconds a byte, is done beside the event loop."""


class TurnRequest(Struct, kw_only=True):
    """A dialect's request in the terms of the core."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    parse_tools: bool = False
    sampling: Mapping[str, Any] = {}  # fields of Sampling; None is left out
    num_bytes: int = 0  # of the request's body


class Plan(Struct, kw_only=True):
    """A call that is ready to leave."""

    call_id: str
    parent: int | None
    prompt_ids: list[int]
    sampling: Sampling
    conversation: bytes  # key of the request's messages
    parse_tools: bool


class Turns:
    def __init__(self, renderer: Renderer, pool: EnginePool, metrics: Metrics, *, timeout_s: float) -> None:
        self._renderer = renderer
        self._pool = pool
        self._metrics = metrics
        self._timeout_s = timeout_s

    async def run(self, session: Session, request: TurnRequest, call_id: str, gone: asyncio.Future[None]) -> Call:
        """Answers one request. `gone` is done when the client has left; its engine request is then aborted.

        Raises Refusal: sealed, meanwhile too (409), a limit or a field (400), no engine (429, 503), too slow (504).
        """
        session.check_open()
        if request.num_bytes > LARGE_BODY:
            plan = await asyncio.to_thread(self._plan, session, request, call_id)
        else:
            plan = self._plan(session, request, call_id)
        session.admit(time.time())
        task = asyncio.create_task(self._sample(session, plan), name=f"call {call_id}")
        session.track(task)
        left = session.seconds_left(time.time())
        first_of: set[asyncio.Future[Any]] = {task, gone}
        try:
            await asyncio.wait(
                first_of,
                timeout=self._timeout_s if left is None else min(left, self._timeout_s),
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=SEAL_S)
                if not task.done() or task.cancelled():
                    session.check_open()
                    raise self._gave_up(session, gone)
            if task.cancelled():
                raise sealed(session.id)
            return task.result()
        except BaseException:
            session.withdraw()
            raise
        finally:
            task.cancel()

    def _gave_up(self, session: Session, gone: asyncio.Future[None]) -> Refusal:
        if gone.done():
            return Refusal(499, "client_gone", "the client closed the connection")
        session.check_deadline(time.time())
        return Refusal(
            504, "timeout", f"no answer in {self._timeout_s:g} s; raise request_timeout_s or lower max_tokens"
        )

    def _plan(self, session: Session, request: TurnRequest, call_id: str) -> Plan:
        sampling = effective(request.sampling, session.pins, session.mode)
        try:
            keys = conversation_keys(request.messages, request.tools)
            parent, held = session.graph.match(keys)
            prompt_ids = None
            if parent is not None:
                prompt_ids = self._extend(session.graph.calls[parent], request, held)
            if prompt_ids is None:
                if session.graph.calls:
                    self._metrics.branches.labels("rewritten" if parent is None else "unbridgeable").inc()
                parent = None
                prompt_ids = self._renderer.first(request.messages, request.tools)
        except RenderError as error:
            raise invalid("messages", str(error)) from error
        except RecursionError as error:
            raise invalid("tools", "tools: a schema is nested too deep to be written into a prompt") from error
        return Plan(
            call_id=call_id,
            parent=parent,
            prompt_ids=prompt_ids,
            sampling=sampling,
            conversation=keys[-1],
            parse_tools=request.parse_tools,
        )

    def _extend(self, call: Call, request: TurnRequest, held: int) -> list[int] | None:
        history, new = request.messages[: held - 1], request.messages[held:]
        added = self._renderer.extension(history, call.message, new, request.tools, call.token_ids)
        return None if added is None else call.prompt_token_ids + call.token_ids + added

    async def _sample(self, session: Session, plan: Plan) -> Call:
        lost: EngineUnavailable | None = None
        for attempt in range(ATTEMPTS):
            engine = await self._pool.acquire(session.id)
            try:
                session.check_tokens()  # calls that were answered while this one waited may have used them up
                sampling = fit(plan.sampling, plan.prompt_ids, engine.context_length, session.tokens_left)
                sample = Sample(plan.prompt_ids, sampling, engine_id=engine.id, started_version=engine.version)
                return await self._from_engine(session, plan, engine, sample, f"{plan.call_id}-{attempt}")
            except EngineUnavailable as error:
                lost = error
            finally:
                self._pool.release(engine)
        raise Refusal(503, "engine_lost", f"{ATTEMPTS} engines in a row failed this call; last: {lost}", retry_after=1)

    async def _from_engine(
        self, session: Session, plan: Plan, engine: EngineState, sample: Sample, request_id: str
    ) -> Call:
        """Raises EngineUnavailable when another engine should be tried."""
        try:
            async with self._pool.client(engine) as client:
                stream = client.stream(
                    sample.prompt_ids, sample.sampling, request_id=request_id, version=sample.started_version
                )
                async with aclosing(stream) as chunks:
                    async for chunk in chunks:
                        sample.add(chunk)
        except EngineUnavailable as error:
            self._pool.failed(engine, error)
            self._record_lost(session, plan, engine, sample, "engine_lost", request_id)
            raise
        except ContextOverflow as error:
            raise Refusal(400, "context_length_exceeded", str(error), param="messages") from error
        except EngineError as error:
            self._record_lost(session, plan, engine, sample, "engine_fault", request_id)
            raise Refusal(502, "engine_error", str(error)) from error
        except asyncio.CancelledError:
            self._record_lost(session, plan, engine, sample, "aborted", request_id)
            raise
        if sample.finish_reason == "abort":
            self._record_lost(session, plan, engine, sample, "aborted", request_id)
            raise EngineUnavailable(f"engine {engine.id} aborted the request")
        return self._record(session, plan, engine, sample)

    def _record(self, session: Session, plan: Plan, engine: EngineState, sample: Sample) -> Call:
        text = trim_at_stop(self._renderer.text(sample.token_ids), sample.stop_reason)
        message = assistant_message(text, tools=plan.parse_tools)
        call = sample.call(plan.call_id, message, parent=plan.parent, engine_version=engine.version)
        session.graph.add(call, extend_key(plan.conversation, message))
        self._metrics.saw_call(call)
        return call

    def _record_lost(
        self, session: Session, plan: Plan, engine: EngineState, sample: Sample, reason: str, request_id: str
    ) -> None:
        """Tokens that nobody was given: counted, never trained, never continued."""
        if not sample.token_ids:
            return
        message = {"role": "assistant", "content": self._renderer.text(sample.token_ids)}
        sample.finish_reason = "abort"
        call = sample.call(request_id, message, parent=plan.parent, engine_version=engine.version, untrainable=reason)
        session.graph.add(call, None)
        self._metrics.saw_call(call)
