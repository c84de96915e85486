"""Model calls over HTTP: a dialect's request in, its answer out, whole or streamed. A retry is sampled once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp

from agentrl.digest import update
from agentrl.gateway.attempts import Asked
from agentrl.gateway.deltas import Answer, Piece, deltas_of
from agentrl.gateway.departure import Departure
from agentrl.gateway.dialects.base import Dialect, Responding, StreamEncoder
from agentrl.gateway.dialects.errors import retry_headers
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.gateway import Gateway
from agentrl.gateway.generation import Plan
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.render import Renderer
from agentrl.gateway.session import Session
from agentrl.gateway.streaming import EventStream, Mailbox, WholeAnswer

logger = logging.getLogger(__name__)

R = TypeVar("R")

Endpoint = Callable[[Request], Awaitable[ASGIApp]]

FIRST_EVENT_S = 10.0
"""A streamed response begins with its first token, so that a refusal still has its status; at the latest after this."""

KEEP_ALIVE_S = 15.0
"""Silence after which a stream says something without meaning, for proxies and clients that give up on silence."""


def model_call(gateway: Gateway, dialect: Dialect[R], renderer: Renderer) -> Endpoint:
    async def endpoint(request: Request) -> ASGIApp:
        started = time.perf_counter()
        departure: Departure | None = None
        status = 200
        try:
            await gateway.pacer.turn()
            session = await gateway.auth.session_of(request.headers, request.path_params.get("session_id"))
            body = await _body_of(request)
            departure = Departure(request)
            exchange = Exchange(gateway, dialect, renderer, session, body, request.headers, departure)
            response: ASGIApp = await exchange.respond()
            if isinstance(response, EventStream):
                departure = None  # the stream ends it
        except Refusal as refusal:
            status, response = refusal.status, refused(refusal, dialect.error(refusal))
        except ClientDisconnect:
            status, response = 499, Response(status_code=499)
        except Exception:
            failure = unforeseen(dialect.name)
            status, response = 500, refused(failure, dialect.error(failure))
        finally:
            if departure is not None:
                departure.close()
        gateway.metrics.requests.labels(dialect.name, str(status)).inc()
        gateway.metrics.latency.labels(dialect.name).observe(time.perf_counter() - started)
        return response

    return endpoint


async def _body_of(request: Request) -> bytes:
    """As `request.body()`, which is slow for what nearly always comes in one piece. Raises ClientDisconnect."""
    pieces: list[bytes] = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def unforeseen(what: str) -> Refusal:
    """For a fault of ours; called where it was caught, so that the log has it whole."""
    logger.exception("a %s request failed inside the gateway", what)
    return Refusal(500, "internal_error", "the gateway failed on this request; its log says why")


def refused(refusal: Refusal, body: bytes) -> Response:
    return Response(body, refusal.status, retry_headers(refusal), media_type="application/json")


class Exchange(Generic[R]):
    """One request and its response."""

    def __init__(
        self,
        gateway: Gateway,
        dialect: Dialect[R],
        renderer: Renderer,
        session: Session,
        body: bytes,
        headers: Mapping[str, str],
        departure: Departure,
    ) -> None:
        self._gateway = gateway
        self._dialect = dialect
        self._renderer = renderer
        self._session = session
        self._departure = departure
        self._gone = departure.gone
        self._turn, self._decoded = dialect.decode(body)
        digest = hashlib.blake2b(digest_size=16, person=dialect.name.encode()[:16])
        update(digest, body)
        self._digest = digest.digest()
        count = headers.get("x-stainless-retry-count", "0")[:4]
        self._attempt, self._earlier = session.attempts.begin(
            self._digest, count=int(count) if count.isdecimal() else 0, key=headers.get("idempotency-key")
        )

    async def respond(self) -> ASGIApp:
        """Raises Refusal."""
        attempt, session = self._attempt, self._session
        try:
            if (answers := await self._missed()) is not None:
                return self._again(answers)
            session.check_open()
            attempt.response_id = f"{self._dialect.call_prefix}{random.getrandbits(128):032x}"
            attempt.created = int(time.time())
            plans = await self._gateway.turns.plan(session, self._turn, attempt.response_id)
            self._note_key(plans)
            if self._turn.stream:
                return await self._streamed(plans)
            answers = await self._gateway.turns.run(session, self._pool, plans, self._gone)
        except BaseException as error:
            attempt.end(None)
            if isinstance(error, Exception):
                self._failed(error)
            raise
        await self._ended(answers)
        return self._whole(answers)

    def _note_key(self, plans: Sequence[Plan]) -> None:
        """So that a retry is answered from the record though this gateway died."""
        attempt = self._attempt
        if attempt.key is None:
            return
        for choice, plan in enumerate(plans):
            self._session.asked[plan.call_id] = Asked(
                attempt.key, attempt.body.hex(), attempt.response_id, attempt.created, choice, len(plans)
            )

    def _failed(self, error: Exception) -> None:
        """Notes what is not the sender's fault, and what is the policy's doing."""
        code, status = (error.code, error.status) if isinstance(error, Refusal) else ("internal_error", 500)
        if status == 429 or status >= 500:
            self._session.left_unanswered(self._digest, code)
        self._session.overflowed = code == "context_length_exceeded"

    async def _missed(self) -> list[Answer] | None:
        """The answers of the request that this one repeats, once it has ended; None when there are none."""
        if self._earlier is None:
            return None
        waiting: asyncio.Future[Any] = asyncio.shield(self._earlier.answers)
        limit_s = self._gateway.config.request_timeout_s
        await asyncio.wait({waiting, self._gone}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        answers = waiting.result() if waiting.done() else None
        self._gateway.metrics.repeats.labels("sampled" if answers is None else "answered").inc()
        return answers

    def _again(self, answers: list[Answer]) -> ASGIApp:
        assert self._earlier is not None
        attempt = self._attempt
        attempt.response_id, attempt.created = self._earlier.response_id, self._earlier.created
        attempt.end(answers)
        attempt.delivered = not self._gone.done()
        self._gateway.delivered(self._session, answers, attempt.delivered)
        if not self._turn.stream:
            return self._whole(answers)
        self._departure.close()
        return EventStream(_recorded(self._encoder(), answers))

    async def _ended(self, answers: list[Answer]) -> None:
        """The answers are on their way; to nobody, when the client has left meanwhile."""
        self._attempt.end(answers)
        self._session.unanswered.pop(self._digest, None)
        self._session.overflowed = False
        self._attempt.delivered = not self._gone.done()
        if not self._attempt.delivered and not self._attempt.repeated:
            self._gateway.delivered(self._session, answers, False)

    def _whole(self, answers: Sequence[Answer]) -> WholeAnswer:
        return WholeAnswer(self._dialect.encode(answers, self._decoded, self._responding()))

    async def _streamed(self, plans: list[Plan]) -> ASGIApp:
        """Begins when the first token is there. Raises Refusal until then."""
        mailbox = Mailbox()
        task = asyncio.create_task(
            self._gateway.turns.run(
                self._session,
                self._pool,
                plans,
                self._gone,
                listener=lambda choice, piece: mailbox.put((choice, piece)),
            ),
            name=f"stream {self._attempt.response_id}",
        )
        task.add_done_callback(mailbox.put)
        try:
            first = await mailbox.take(FIRST_EVENT_S)
            if task in first and (task.cancelled() or task.exception() is not None):
                task.result()
        except BaseException:
            task.cancel()
            raise
        return EventStream(self._events(plans, task, mailbox, first))

    async def _events(
        self, plans: list[Plan], task: asyncio.Task[list[Answer]], mailbox: Mailbox, first: list[object]
    ) -> AsyncIterator[bytes]:
        encoder = self._encoder()
        try:
            yield encoder.begin(plans[0].prompt_ids)
            items, spoke = first, time.monotonic()
            while True:
                pieces = [encoder.piece(*item) for item in items if isinstance(item, tuple)]
                data = b"".join(pieces)
                if not data and time.monotonic() - spoke >= KEEP_ALIVE_S:  # also while text is held back
                    data = encoder.keep_alive()
                if data:
                    yield data
                    spoke = time.monotonic()
                if task in items:
                    break
                items = await mailbox.take(max(0.0, spoke + KEEP_ALIVE_S - time.monotonic()))
            answers = task.result()
            await self._ended(answers)
            yield encoder.end(answers)
        except Refusal as refusal:
            self._failed(refusal)
            yield encoder.fail(refusal)
        except Exception as error:
            self._failed(error)
            yield encoder.fail(unforeseen(self._dialect.name))
        finally:
            self._attempt.end(None)
            task.cancel()
            self._departure.close()

    def _pool(self) -> EnginePool:
        """Asked for whenever an engine is needed, for a run's own engines come and go."""
        return self._gateway.pool_of(self._session)

    def _encoder(self) -> StreamEncoder:
        return self._dialect.stream(self._decoded, self._responding())

    def _responding(self) -> Responding:
        return Responding(
            response_id=self._attempt.response_id,
            created=self._attempt.created,
            model=self._gateway.config.model_name,
            token_bytes=self._renderer.token_bytes,
            text=self._renderer.spelled,
        )


async def _recorded(encoder: StreamEncoder, answers: Sequence[Answer]) -> AsyncIterator[bytes]:
    """A recorded answer, streamed again."""
    yield encoder.begin(answers[0].call.prompt_token_ids)
    for choice, answer in enumerate(answers):
        call = answer.call
        piece = Piece(
            token_ids=call.token_ids,
            logprobs=answer.logprobs,
            top_logprobs=answer.top_logprobs,
            deltas=deltas_of(call.message),
        )
        yield encoder.piece(choice, piece)
    yield encoder.end(answers)
