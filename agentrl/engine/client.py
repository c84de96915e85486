"""`HttpEngineClient`: tokens in, tokens out, from one vLLM server. Implements `agentrl.gateway.ports.EngineClient`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import aiohttp
import orjson

from agentrl.engine import wire
from agentrl.engine.config import EngineTimeouts
from agentrl.engine.http import Broken, Connection
from agentrl.engine.http_pool import KEEPALIVE_S, ConnectionPool
from agentrl.engine.stream import GenerationReader, beginning
from agentrl.errors import ContextOverflow, EngineError, EngineUnavailable
from agentrl.types import Sampling, TokenChunk

GENERATE = "/inference/v1/generate"
REFUSAL_BYTES = 500  # of a refusal, read for the error message


class HttpEngineClient:
    """One engine by URL.

    A request carries the newest version that its caller or this client knows of as its `cache_salt`. So no request
    sent after either learnt of a swap is served from prefix blocks that older weights computed, in `keep` mode too.

    `send_seed` is off because vLLM's CPU sampler fails on a seeded request that lives through a swap; a seed is best
    effort by OpenAI's contract. `api_key` is for a server started with `--api-key`. `model` names an adapter to sample
    with; an engine that has none of that name refuses.
    """

    def __init__(
        self,
        url: str,
        *,
        timeouts: EngineTimeouts | None = None,
        send_seed: bool = False,
        api_key: str | None = None,
        model: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._api_key = api_key
        self._timeouts = timeouts or EngineTimeouts()
        self._send_seed = send_seed
        self._model = {} if model is None else {"model": model}
        self._pool: ConnectionPool | None = None  # for generations
        self._http: aiohttp.ClientSession | None = None  # for everything else
        self._version: int | None = None
        self._context_length: int | None = None

    async def stream(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, request_id: str, version: int | None = None
    ) -> AsyncGenerator[TokenChunk]:
        """Sample a continuation of `prompt_ids`; the contract is `EngineClient.stream`'s.

        Raises also ContextOverflow, without asking the engine, when the prompt leaves no room for a token.
        """
        body = await self._request_body(prompt_ids, sampling, request_id, version)
        max_tokens = body["sampling_params"]["max_tokens"]
        reader = GenerationReader(self.url, max_tokens=max_tokens, top_logprobs=sampling.top_logprobs)
        loop = asyncio.get_running_loop()
        limit_s = self._timeouts.first_token_s
        deadline = loop.time() + limit_s
        pool = self._connections()
        answer = await self._post(pool, orjson.dumps(body), deadline)
        try:
            if answer.status != 200:
                await self._refused(answer, deadline)
            while not reader.done:
                chunks = await self._read(answer, reader, deadline, limit_s)
                for chunk in chunks:
                    if chunk.versions:
                        self._version = max(self._version or 0, chunk.versions[-1].version)
                    yield chunk
                if reader.failure is not None:
                    raise reader.failure
                if chunks and reader.num_tokens:
                    limit_s = self._timeouts.stall_s
                    deadline = loop.time() + limit_s
            await self._drain(answer)
        finally:
            pool.release(answer)

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
            self._context_length = (await self._get("/v1/models", wire.Models)).context_length
        return self._context_length

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._http is not None:
            await self._http.close()
            self._http = None

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            timeouts = aiohttp.ClientTimeout(total=None, sock_connect=self._timeouts.connect_s)
            connector = aiohttp.TCPConnector(keepalive_timeout=KEEPALIVE_S)
            headers = {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key}"}
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
            "token_ids": prompt_ids if isinstance(prompt_ids, list) else list(prompt_ids),
            "sampling_params": wire.sampling_params(sampling, max_tokens=max_tokens, send_seed=self._send_seed),
            "stream": True,
            "cache_salt": f"version {newest}",
            **self._model,
        }

    def _connections(self) -> ConnectionPool:
        if self._pool is None:
            self._pool = ConnectionPool(self.url, connect_s=self._timeouts.connect_s, bearer=self._api_key)
        return self._pool

    async def _post(self, pool: ConnectionPool, body: bytes, deadline: float) -> Connection:
        try:
            return await pool.post(GENERATE, body, deadline)
        except TimeoutError as error:
            raise self._no_answer() from error
        except Broken as error:
            raise self._broken(error) from error

    async def _read(
        self, answer: Connection, reader: GenerationReader, deadline: float, limit_s: float
    ) -> list[TokenChunk]:
        """What the next read brings. Closed before its end, the answer aborts the request."""
        try:
            received = await answer.read(deadline)
        except TimeoutError as error:
            raise EngineUnavailable(f"engine {self.url} sent no token for {limit_s:g} s") from error
        except Broken as error:
            raise self._broken(error) from error
        if received:
            return reader.feed(received)
        reader.end()
        return []

    async def _drain(self, answer: Connection) -> None:
        """Reads what follows the last chunk, so that the connection can be used again."""
        if not answer.complete:
            deadline = asyncio.get_running_loop().time() + self._timeouts.probe_s
            with suppress(Broken, TimeoutError):
                while await answer.read(deadline):
                    pass

    async def _refused(self, answer: Connection, deadline: float) -> NoReturn:
        said = b""
        try:
            while len(said) < REFUSAL_BYTES and (received := await answer.read(deadline)):
                said += received
        except TimeoutError as error:
            raise self._no_answer() from error
        except Broken:
            pass  # its status says enough
        raise self._refusal(GENERATE, answer.status, said)

    def _no_answer(self) -> EngineUnavailable:
        return EngineUnavailable(f"engine {self.url} gave no answer for {self._timeouts.first_token_s:g} s")

    def _broken(self, error: Broken) -> EngineUnavailable:
        return EngineUnavailable(f"engine {self.url} broke off a generation: {error}")

    async def _get(self, path: str, kind: type[wire.Answer]) -> wire.Answer:
        timeout = aiohttp.ClientTimeout(total=self._timeouts.probe_s)
        try:
            async with self._session().get(f"{self.url}{path}", timeout=timeout) as response:
                body = await response.read()
                if response.status != 200:
                    raise self._refusal(path, response.status, body)
                return wire.decode(body, kind, source=f"{self.url}{path}")
        except TimeoutError as error:
            raise EngineUnavailable(
                f"engine {self.url}{path} gave no answer in {self._timeouts.probe_s:g} s"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.url}{path} cannot be reached: {error!r}") from error

    def _refusal(self, path: str, status: int, body: bytes) -> EngineError:
        message = f"engine {self.url}{path} answered {status}: {beginning(body)}"
        return EngineUnavailable(message) if status >= 500 or status == 429 else EngineError(message)
