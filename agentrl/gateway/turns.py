"""One request, whatever the dialect: prompts → engines → answers, recorded in the session's graph and in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from agentrl.gateway.canonical import answer_keys
from agentrl.gateway.deltas import Answer, Piece
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.failover import Sampler
from agentrl.gateway.generation import Generation, Plan
from agentrl.gateway.metrics import Metrics
from agentrl.gateway.pacing import Pacer
from agentrl.gateway.planner import Planner
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.request import TurnRequest
from agentrl.gateway.sample import Sample
from agentrl.gateway.session import SEAL_S, Session
from agentrl.types import Call, TokenChunk

LARGE_BODY = 200_000
"""Bytes of a request from which on encoding it, some microseconds a byte, is done beside the event loop."""

Listener = Callable[[int, Piece], None]
"""(choice, piece): hears an answer while it is being sampled."""


class Books(Protocol):
    """Where calls are made durable; `agentrl.gateway.books`."""

    async def added(self, session: Session) -> None:
        """Returns when all calls of the session are durable. Raises Refusal."""
        ...

    def changed(self, session: Session, index: int) -> None:
        """Of a recorded call. Nobody waits for it."""
        ...


class Turns:
    def __init__(self, planner: Planner, metrics: Metrics, books: Books, pacer: Pacer, *, timeout_s: float) -> None:
        self._planner = planner
        self._metrics = metrics
        self._books = books
        self._pacer = pacer
        self._sampler = Sampler(metrics)
        self._timeout_s = timeout_s

    async def plan(self, session: Session, request: TurnRequest, response_id: str) -> list[Plan]:
        """Raises Refusal naming the field."""
        if request.num_bytes > LARGE_BODY:
            return await asyncio.to_thread(self._planner.plan, session, request, response_id)
        return self._planner.plan(session, request, response_id)

    async def run(
        self,
        session: Session,
        pool_of: Callable[[], EnginePool],
        plans: list[Plan],
        gone: asyncio.Future[None],
        listener: Listener | None = None,
    ) -> list[Answer]:
        """Answers each plan; all are durable when it returns. `gone` is done when the client has left: that aborts it.

        Raises Refusal: sealed, meanwhile too (409), a limit or a field (400), no engine (429, 503), too slow (504).
        One choice that fails ends them all.
        """
        session.admit(time.time(), len(plans))
        for branch in {plan.branch for plan in plans if plan.branch}:
            self._metrics.branches.labels(branch).inc()
        tasks = [
            asyncio.create_task(
                self._answer(session, pool_of, plan, _for_choice(listener, i)), name=f"call {plan.call_id}"
            )
            for i, plan in enumerate(plans)
        ]
        for task in tasks:
            session.track(task)
        try:
            await self._until_done(session, tasks, gone)
            return [task.result() for task in tasks]
        finally:
            answered = [task for task in tasks if _answered(task)]
            session.withdraw(len(tasks) - len(answered))
            if len(answered) < len(tasks):  # then nobody is given the others either
                self._undelivered(session, [task.result().call.call_id for task in answered])

    async def _until_done(
        self, session: Session, tasks: list[asyncio.Task[Answer]], gone: asyncio.Future[None]
    ) -> None:
        """Returns when every task has an answer; else ends them all and raises why."""
        left = session.seconds_left(time.time())
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()  # all are answered, or it makes no sense to wait on

        def end(_: object = None) -> None:
            if not over.done():
                over.set_result(None)

        def ended(task: asyncio.Task[Answer]) -> None:
            if not _answered(task) or all(each.done() for each in tasks):
                end()

        timer = loop.call_later(self._timeout_s if left is None else min(left, self._timeout_s), end)
        gone.add_done_callback(end)
        for task in tasks:
            task.add_done_callback(ended)
        try:
            await over
        finally:
            timer.cancel()
            gone.remove_done_callback(end)
            unfinished = [task for task in tasks if not task.done()]
            for task in unfinished:
                task.cancel()
            if unfinished:
                await asyncio.wait(unfinished, timeout=SEAL_S)
        if all(map(_answered, tasks)):
            return
        failed = next((task for task in tasks if task.done() and not task.cancelled() and task.exception()), None)
        if failed is not None:
            failed.result()
        session.check_open()
        raise self._gave_up(session, gone, at_deadline=left is not None and left <= self._timeout_s)

    def _gave_up(self, session: Session, gone: asyncio.Future[None], *, at_deadline: bool) -> Refusal:
        if gone.done():
            return Refusal(499, "client_gone", "the client closed the connection")
        if at_deadline:  # the loop's timers are not the wall clock: by that there may be a millisecond left
            return session.deadline_over()
        return Refusal(
            504, "timeout", f"no answer in {self._timeout_s:g} s; raise request_timeout_s or lower max_tokens"
        )

    async def _answer(
        self, session: Session, pool_of: Callable[[], EnginePool], plan: Plan, listener: Callable[[Piece], None] | None
    ) -> Answer:
        generation = Generation(plan, plan.sampling, listener)
        session.begin_sampling(generation.sample)
        reason = "aborted"
        try:
            engine_id = await self._sampler.run(pool_of, session, generation)
            await self._pacer.turn()
            reason = ""
        except Refusal as refusal:
            reason = LOST.get(refusal.code, "aborted")
            raise
        finally:
            session.end_sampling(generation.sample)
            if reason:
                self._record_lost(session, plan, generation.sample, reason)
        generation.finish()
        call = self._record(session, generation, engine_id)
        if generation.overrun is not None:
            self._record_overrun(session, generation, generation.overrun, engine_id)
        try:
            await self._books.added(session)
        except BaseException:
            self._undelivered(session, [call.call_id])
            raise
        return generation.answer(call, count_reasoning=self._planner.count_reasoning)

    def _undelivered(self, session: Session, call_ids: list[str]) -> None:
        for index in session.set_delivered(call_ids, False):
            self._books.changed(session, index)

    def _record(self, session: Session, generation: Generation, engine_id: str) -> Call:
        plan, message = generation.plan, generation.message()
        untrainable = "constrained" if plan.sampling.constraint is not None else None
        keys = [] if plan.conversation is None else answer_keys(plan.conversation, message)
        call = generation.sample.call(
            plan.call_id, message, engine_id=engine_id, parent=plan.parent, untrainable=untrainable
        )
        call.messages, call.conversation = plan.messages, " ".join(key.hex() for key in keys)
        index = session.graph.add(call, keys, generation.sample.prompt_digest)
        session.drifts.saw(index, call, plan.rendering)
        self._metrics.saw_call(call)
        return call

    def _record_lost(self, session: Session, plan: Plan, sample: Sample, reason: str) -> None:
        """Tokens that nobody was given: counted, never trained, never continued."""
        if not sample.token_ids:
            return
        message = {"role": "assistant", "content": self._planner.text(sample.token_ids)}
        sample.finish_reason = "abort"
        engine_id = sample.segments[-1].engine_id if sample.segments else ""
        call = sample.call(f"{plan.call_id}-lost", message, engine_id=engine_id, parent=plan.parent, untrainable=reason)
        session.graph.add(call)
        self._metrics.saw_call(call)

    def _record_overrun(self, session: Session, generation: Generation, rest: TokenChunk, engine_id: str) -> None:
        """Tokens beyond the end of an answer, as a call of their own that nobody was given."""
        answer = generation.sample
        sample = Sample(answer.prompt_ids + answer.token_ids, answer.sampling)
        sample.add(rest)
        sample.end_segment(engine_id, None, answer.newest_version)
        plan = msgspec.structs.replace(generation.plan, call_id=f"{generation.plan.call_id}-over")
        self._record_lost(session, plan, sample, generation.overrun_reason)


LOST = {"engine_lost": "engine_lost", "engine_error": "engine_fault", "version_changed": "version_changed"}
"""Under which reason the tokens of a refused call are counted, by the refusal's code."""


def _answered(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _for_choice(listener: Listener | None, choice: int) -> Callable[[Piece], None] | None:
    if listener is None:
        return None
    return lambda piece: listener(choice, piece)
