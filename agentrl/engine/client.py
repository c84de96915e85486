"""`HttpEngineClient`: tokens in, tokens out, from one vLLM server. Implements `agentrl.gateway.ports.EngineClient`."""

from __future__ import annotations

import asyncio
import logging
import reprlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NoReturn, get_args

import aiohttp
import orjson
from msgspec import Raw

from agentrl.engine import wire
from agentrl.engine.config import EngineTimeouts
from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable
from agentrl.types import FinishReason, Sampling, TokenChunk, VersionSpan

logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 4096
KEEPALIVE_S = 4.0  # below uvicorn's 5 s, so that a reused connection is not closed under a request


class HttpEngineClient:
    """One engine by URL.

    A request carries the newest version that its caller or this client knows of as its `cache_salt`. So no request
    sent after either learnt of a swap is served from prefix blocks that older weights computed, in `keep` mode too.

    `send_seed` is off because vLLM's CPU sampler fails on a seeded request that lives through a swap; a seed is best
    effort by OpenAI's contract.
    """

    def __init__(self, url: str, *, timeouts: EngineTimeouts | None = None, send_seed: bool = False) -> None:
        self.url = url.rstrip("/")
        self._timeouts = timeouts or EngineTimeouts()
        self._send_seed = send_seed
        self._http: aiohttp.ClientSession | None = None
        self._version: int | None = None
        self._context_length: int | None = None

    async def stream(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, version: int | None = None
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation of `prompt_ids`; the contract is `EngineClient.stream`'s.

        Raises also ContextOverflow, without asking the engine, when the prompt leaves no room for a token.
        """
        body = await self._request_body(prompt_ids, sampling, request_id, version)
        limits = body["sampling_params"]["max_tokens"], sampling.top_logprobs
        try:
            async with self._open(body) as response, aclosing(self._chunks(response, *limits)) as chunks:
                async for chunk in chunks:
                    yield chunk
                with suppress(aiohttp.ClientError, OSError):  # what follows the last chunk; frees the connection
                    async with asyncio.timeout(self._timeouts.probe_s):
                        await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.url} broke off a generation: {error!r}") from error

    async def version(self) -> int:
        answer = await self._get("/weight_info", wire.WeightInfo)
        self._version = wire.version_of(answer.weight_version)
        return self._version

    async def healthy(self) -> bool:
        timeout = aiohttp.ClientTimeout(total=self._timeouts.probe_s)
        try:
            async with self._session().get(f"{self.url}/health", timeout=timeout) as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def context_length(self) -> int:
        if self._context_length is None:
            self._context_length = (await self._get("/v1/models", wire.Models)).data[0].max_model_len
        return self._context_length

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeouts = aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s)
            connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_S)
            headers = {"Content-Type": "application/json"}
            self._http = aiohttp.ClientSession(connector=connector, timeout=timeouts, headers=headers)
        return self._http

    async def _request_body(
        self, prompt_ids: Sequence[int], sampling: Sampling, request_id: str, version: int | None
    ) -> dict[str, Any]:
        room = await self.context_length() - len(prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in the engine's context of "
                f"{len(prompt_ids) + room}; shorten the conversation or raise engine.max_model_len"
            )
        if version is None and self._version is None:
            await self.version()
        newest = max(known for known in (version, self._version) if known is not None)
        max_tokens = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        return {
            "request_id": request_id,
            "token_ids": list(prompt_ids),
            "sampling_params": wire.sampling_params(sampling, max_tokens=max_tokens, send_seed=self._send_seed),
            "stream": True,
            "cache_salt": f"version {newest}",
        }

    @asynccontextmanager
    async def _open(self, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer to a generate request, its headers read. Closed before its end, it aborts the request."""
        limit_s = self._timeouts.first_token_s
        try:
            async with asyncio.timeout(limit_s):
                response = await self._session().post(f"{self.url}/inference/v1/generate", data=orjson.dumps(body))
                await self._raise_for_status(response)
        except TimeoutError as error:
            raise EngineUnavailable(f"engine {self.url} gave no answer for {limit_s:g} s") from error
        async with response:
            yield response

    async def _chunks(
        self, response: aiohttp.ClientResponse, max_tokens: int, top_logprobs: int
    ) -> AsyncGenerator[TokenChunk]:
        """Tokens that came with something wrong are handed on all the same: they were sampled, so they count."""
        num_tokens = 0
        honest = True  # false from the first bad logprob on: the generation as a whole is untrainable
        async for choice in self._choices(response):
            token_ids = choice.token_ids or []
            num_tokens += len(token_ids)
            logprobs = wire.checked_logprobs(token_ids, choice.logprobs) if honest else None
            honest = logprobs is not None
            top = wire.top_logprobs(choice.logprobs, top_logprobs) if top_logprobs else None
            fault = _fault(choice, num_tokens, max_tokens)
            if choice.finish_reason is None or fault:
                yield TokenChunk(token_ids=token_ids, logprobs=logprobs, top_logprobs=top)
                if fault:
                    raise EngineError(f"engine {self.url} {fault}")
                continue
            yield TokenChunk(
                token_ids=token_ids,
                logprobs=logprobs,
                top_logprobs=top,
                finish_reason=choice.finish_reason,
                stop_reason=choice.stop_reason,
                versions=self._versions(choice.weight_versions, num_tokens),
            )
            return
        raise EngineUnavailable(f"engine {self.url} ended a stream after {num_tokens} tokens without a finish reason")

    def _versions(self, spans: Any, num_tokens: int) -> list[VersionSpan]:
        """The spans of a generation, none at all when they are wrong: its tokens are then untrainable and counted."""
        try:
            versions = wire.checked_spans(spans, num_tokens)
        except EngineError as error:
            logger.warning("a generation of engine %s is untrainable: %s", self.url, error)
            return []
        if versions:
            self._version = max(self._version or 0, versions[-1].version)
        return versions

    async def _choices(self, response: aiohttp.ClientResponse) -> AsyncIterator[wire.Choice]:
        async for data in self._events(response):
            event = wire.decode(data, wire.Event, source=self.url)
            if isinstance(event.error, Raw):
                self._raise_stream_error(event.error)
            for choice in event.choices:
                yield choice

    def _raise_stream_error(self, error: Raw) -> NoReturn:
        """vLLM validates prompts only after the stream has begun, so a bad request may arrive as an event."""
        message = f"engine {self.url} failed inside a generation: {_text(bytes(error))}"
        raise EngineUnavailable(message) if wire.may_pass(error) else EngineError(message)

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        """The data of each server-sent event up to [DONE]."""
        pending = b""
        limit_s = self._timeouts.first_token_s
        while True:
            try:
                async with asyncio.timeout(limit_s):
                    received = await response.content.readany()
            except TimeoutError as error:
                raise EngineUnavailable(f"engine {self.url} sent no token for {limit_s:g} s") from error
            if not received:
                return
            limit_s = self._timeouts.stall_s
            *events, pending = (pending + received).split(b"\n\n")
            for event in events:
                data = event.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    return
                if data and not event.startswith(b":"):  # a colon starts a keep-alive comment
                    yield data

    async def _get(self, path: str, kind: type[wire.Answer]) -> wire.Answer:
        timeout = aiohttp.ClientTimeout(total=self._timeouts.probe_s)
        try:
            async with self._session().get(f"{self.url}{path}", timeout=timeout) as response:
                await self._raise_for_status(response)
                return wire.decode(await response.read(), kind, source=f"{self.url}{path}")
        except TimeoutError as error:
            raise EngineUnavailable(
                f"engine {self.url}{path} gave no answer in {self._timeouts.probe_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.url}{path} cannot be reached: {error!r}") from error

    async def _raise_for_status(self, response: aiohttp.ClientResponse) -> None:
        if response.status == 200:
            return
        async with response:
            said = _text(await response.read())
        message = f"engine {self.url}{response.url.path} answered {response.status}: {said}"
        if response.status >= 500 or response.status == 429:
            raise EngineUnavailable(message)
        raise EngineError(message)


def _fault(choice: wire.Choice, num_tokens: int, max_tokens: int) -> str | None:
    if num_tokens > max_tokens:
        return f"sampled {num_tokens} tokens; max_tokens was {max_tokens}"
    if choice.finish_reason not in (None, *get_args(FinishReason)):
        return f"ended a generation with {reprlib.repr(choice.finish_reason)}, which is unknown"
    if not isinstance(choice.stop_reason, str | int | None):
        return f"gave {reprlib.repr(choice.stop_reason)} as stop_reason; expected a string or a token id"
    return None


def _text(body: bytes) -> str:
    """The beginning of an answer, for an error message."""
    return body[:500].decode(errors="replace")
