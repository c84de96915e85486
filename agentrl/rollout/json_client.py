"""JSON over HTTP to a gateway or an endpoint: pooled, retried where that is safe, refusals told apart."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type
from tenacity.stop import stop_base

from agentrl.env.space import message_fault
from agentrl.errors import ContextOverflow, GatewayError, SessionLimitReached
from agentrl.messages import Message
from agentrl.retry import backoff, retry_after
from agentrl.rollout.ports import Completion

CONNECT_TIMEOUT_S = 10.0
KEEPALIVE_S = 2.0  # below any server's own, so that no request is sent into a connection that is being closed

CONTEXT_CODE = "context_length_exceeded"
CONTEXT_WORDS = ("context length", "context size", "context window")  # in a refusal of servers that have no such code
LIMIT_CODE = "session_limit_reached"


class Retryable(GatewayError):
    """The request had no effect and may be sent again. `retry_after` is the server's wish, in seconds."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after_s


class Unreachable(Retryable):
    """Nobody answers there. Whether the request had an effect, the server says when it is back."""


class Refused(GatewayError):
    """The server answered no, and will again. `code` is its error object's."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


class JsonClient:
    """Belongs to one event loop. Its pool has no limit: the caller's concurrency is the limit.

    `max_attempts` bounds the tries of a request that the server refuses for now, or that do not reach it; of the latter
    there are more until `patience_s` are over. `keepalive_s`: how long an idle connection is kept; less than the server
    keeps it.
    """

    def __init__(self, *, max_attempts: int, keepalive_s: float = KEEPALIVE_S, patience_s: float = 0.0) -> None:
        self._max_attempts = max_attempts
        self._keepalive_s = keepalive_s
        self._patience_s = patience_s
        self._client: aiohttp.ClientSession | None = None  # made on first use, inside the event loop

    async def post(
        self,
        url: str,
        body: Mapping[str, Any],
        key: str | None,
        timeout_s: float,
        *,
        repeatable: bool,
        idempotency_key: str | None = None,
    ) -> Any:
        """The answer's JSON. `repeatable`: whether the request may be sent again when its answer was lost.

        With an `idempotency_key` the server knows a request that is sent again after its connection broke.

        Raises what `refusal` makes of an error answer, and GatewayError when there is no answer or it is not JSON.
        """
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Retryable),
            stop=_Patience(self._max_attempts, self._patience_s),
            wait=backoff,
            reraise=True,
        )
        payload = orjson.dumps(body)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        if idempotency_key is not None:
            headers["Idempotency-Key"] = idempotency_key
        async for attempt in attempts:
            with attempt:
                return await self._post_once(url, payload, headers, timeout_s, repeatable)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post_once(
        self, url: str, payload: bytes, headers: Mapping[str, str], timeout_s: float, repeatable: bool
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        slow = Retryable if repeatable else GatewayError
        lost = Unreachable if repeatable or "Idempotency-Key" in headers else GatewayError
        try:
            async with self._http().post(url, data=payload, headers=headers, timeout=timeout) as response:
                data = await response.read()
                if response.status >= 400:
                    wait = retry_after(response.headers.get("Retry-After"))
                    raise refusal(url, response.status, data, wait, repeatable=repeatable)
        except aiohttp.ClientConnectorError as error:
            raise Unreachable(f"cannot reach {url}: {error}") from error
        except TimeoutError as error:
            raise slow(f"{url} did not answer within {timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise lost(f"lost the connection to {url}: {type(error).__name__}: {error}") from error
        try:
            return orjson.loads(data)
        except ValueError as error:
            raise GatewayError(f"{url} answered with something that is not JSON: {data[:100]!r}") from error

    def _http(self) -> aiohttp.ClientSession:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._keepalive_s), trust_env=False
            )
        return self._client


class _Patience(stop_base):
    """When a request is given up: after so many refusals, or when nobody has answered for so long."""

    def __init__(self, max_attempts: int, patience_s: float) -> None:
        self._max_attempts = max_attempts
        self._patience_s = patience_s
        self._attempts = 0
        self._silent_since: float | None = None

    def __call__(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        if not isinstance(error, Unreachable):
            self._silent_since = None
        elif self._silent_since is None:
            self._silent_since = time.monotonic()
        if self._silent_since is not None and time.monotonic() - self._silent_since < self._patience_s:
            return False
        self._attempts += 1
        return self._attempts >= self._max_attempts


def completion(answer: Any, url: str) -> Completion:
    """The completion in a chat completion's answer. Raises GatewayError when it is none."""
    try:
        choice = answer["choices"][0]
        found = Completion(
            message=Message(choice["message"]),
            finish_reason=choice["finish_reason"],
            num_tokens=int(answer["usage"]["completion_tokens"]),
            call_id=str(answer.get("id", "")),
        )
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GatewayError(f"{url} answered no chat completion: {answer!r:.200}") from error
    if (wrong := _message_fault(found.message)) is not None:
        raise GatewayError(f"{url} answered no assistant message: {wrong}")
    return found


def _message_fault(message: Message) -> str | None:
    if message.get("role") != "assistant":
        return f"its role is {message.get('role')!r}"
    if isinstance(message.get("content"), list) and not all(
        isinstance(part, dict) and isinstance(part.get("text", ""), str) for part in message["content"]
    ):
        return "one of its parts has a text that is none"
    calls = message.tool_calls
    if not isinstance(calls, list) or not all(
        isinstance(call, dict) and isinstance(call.get("function"), dict) for call in calls
    ):
        return f"its tool_calls are {calls!r:.200}"
    return message_fault(message)


def refusal(url: str, status: int, data: bytes, wait: float | None, *, repeatable: bool) -> Exception:
    """What an error answer means to its caller.

    429 and 503 with a Retry-After (`wait`, seconds) say that nothing was done: even a model call may be repeated.
    """
    try:
        error = orjson.loads(data)["error"]
        code, message, param = error.get("code"), str(error.get("message")), str(error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, param = None, data[:200].decode(errors="replace"), ""
    if code == CONTEXT_CODE or (status == 400 and any(words in message.lower() for words in CONTEXT_WORDS)):
        return ContextOverflow(message)
    if code == LIMIT_CODE:
        return SessionLimitReached(message, param.removeprefix("limits."))
    text = f"{url} answered {status}: {message}"
    if (status in (429, 503) and wait is not None) or (status in (429, 502, 503, 504) and repeatable):
        return Retryable(text, wait)
    return Refused(text, code)
