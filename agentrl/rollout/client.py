"""The gateway over HTTP: its control calls, and chat completions under a session's own key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
import orjson
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

from agentrl.errors import ConfigError, ContextOverflow, EnvironmentFault, GatewayError, SessionLimitReached
from agentrl.gateway.config import MAX_SAVE_S
from agentrl.messages import Message
from agentrl.retry import backoff, retry_after
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.ports import Completion, SessionRequest
from agentrl.types import StopReason

CONTROL_TIMEOUT_S = 60.0
STORE_TIMEOUT_S = MAX_SAVE_S + 60.0  # for calls that wait for the store: the gateway has given up before
CONNECT_TIMEOUT_S = 10.0
DEADLINE_GRACE_S = 30.0
KEEPALIVE_S = 2.0  # below any server's own, so that no request is sent into a connection that is being closed
MODEL = "policy"
"""The gateway serves one policy; OpenAI's schema wants a name."""

CONTEXT_CODE = "context_length_exceeded"
LIMIT_CODE = "session_limit_reached"
ENVIRONMENT_CODES = ("invalid_request", "unknown_parameter", "unsupported_parameter", "body_too_large")
"""What the gateway says of messages or tools that it does not take, which are the environment's."""


class Retryable(GatewayError):
    """The request had no effect and may be sent again. `retry_after` is the gateway's wish, in seconds."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after_s


class Refused(GatewayError):
    """The gateway answered no, and will again. `code` is its error object's."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


class HttpGateway:
    """Opens sessions with the admin key. Belongs to one event loop."""

    def __init__(self, url: str, admin_key: str, config: RolloutConfig) -> None:
        self.url = url.rstrip("/")
        self._admin_key = admin_key
        self._config = config
        self._client: aiohttp.ClientSession | None = None

    async def open_session(self, request: SessionRequest) -> HttpSession:
        pins = msgspec.to_builtins(request.sampling)
        try:
            task = orjson.loads(orjson.dumps(msgspec.structs.asdict(request.task), option=orjson.OPT_SERIALIZE_NUMPY))
        except TypeError as error:
            raise ConfigError(f"the options of task {request.task.id} are not JSON: {error}") from error
        limits = {name: value for name, value in msgspec.structs.asdict(request.limits).items() if value is not None}
        if "deadline_s" in limits:  # the episode ends itself in time; this is for a worker that died
            limits["deadline_s"] += DEADLINE_GRACE_S
        body = {
            "task": task,
            "mode": request.mode,
            # max_tokens is asked for call by call, for the episode's own limit may leave less.
            "sampling": {name: value for name, value in pins.items() if value is not None and name != "max_tokens"},
            "limits": limits,
            "metadata": request.metadata,
            "reward_by": "admin",
        }
        opened = await self.control("/sessions", body)
        try:
            return HttpSession(self, str(opened["session_id"]), str(opened["base_url"]), str(opened["api_key"]))
        except KeyError as error:
            raise GatewayError(f"{self.url}/sessions answered without {error}; is it an agentrl gateway?") from None

    async def control(
        self, path: str, body: Mapping[str, Any], *, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> dict[str, Any]:
        """A control call. All of them may be repeated, so a lost answer is asked for again."""
        return await self.post(f"{self.url}{path}", body, self._admin_key, timeout_s, repeatable=True)

    async def model_call(self, url: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A model call. Sent again only where no engine can have seen it, or the answer would be recorded twice."""
        return await self.post(url, body, key, self._config.request_timeout_s, repeatable=False)

    async def post(self, url: str, body: Mapping[str, Any], key: str, timeout_s: float, *, repeatable: bool) -> Any:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(Retryable),
            stop=stop_after_attempt(self._config.max_attempts),
            wait=backoff,
            reraise=True,
        )
        payload = orjson.dumps(body)
        async for attempt in attempts:
            with attempt:
                return await self._post_once(url, payload, key, timeout_s, repeatable)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _post_once(self, url: str, payload: bytes, key: str, timeout_s: float, repeatable: bool) -> Any:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        lost = Retryable if repeatable else GatewayError
        try:
            async with self._http().post(url, data=payload, headers=headers, timeout=timeout) as response:
                data = await response.read()
                if response.status >= 400:
                    wait = retry_after(response.headers.get("Retry-After"))
                    raise refusal(url, response.status, data, wait, repeatable=repeatable)
        except aiohttp.ClientConnectorError as error:
            raise Retryable(f"cannot reach the gateway at {url}: {error}") from error
        except TimeoutError as error:
            raise lost(f"{url} did not answer within {timeout_s:g} s") from error
        except aiohttp.ClientError as error:
            raise lost(f"lost the connection to {url}: {type(error).__name__}: {error}") from error
        try:
            return orjson.loads(data)
        except ValueError as error:
            raise GatewayError(f"{url} answered with something that is not JSON: {data[:100]!r}") from error

    def _http(self) -> aiohttp.ClientSession:
        """Made on first use, inside the event loop. Its pool has no limit: the worker's concurrency is the limit."""
        if self._client is None:
            self._client = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S), trust_env=False
            )
        return self._client


class HttpSession:
    def __init__(self, gateway: HttpGateway, session_id: str, base_url: str, api_key: str) -> None:
        self.id = session_id
        self._gateway = gateway
        self._chat_url = f"{base_url.rstrip('/')}/chat/completions"
        self._api_key = api_key

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        body: dict[str, Any] = {"model": MODEL, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        try:
            answer = await self._gateway.model_call(self._chat_url, body, self._api_key)
        except Refused as error:
            if error.code not in ENVIRONMENT_CODES:
                raise
            raise EnvironmentFault(f"the gateway does not take these messages or tools: {error}") from error
        try:
            choice = answer["choices"][0]
            tokens = int(answer["usage"]["completion_tokens"])
            return Completion(
                message=Message(choice["message"]), finish_reason=choice["finish_reason"], num_tokens=tokens
            )
        except (KeyError, IndexError, TypeError) as error:
            raise GatewayError(f"{self._chat_url} answered no chat completion: {answer!r:.200}") from error

    async def reward(self, reward: float | None, components: Mapping[str, float | None]) -> None:
        body = {"reward": reward, "components": dict(components)}
        await self._gateway.control(f"/sessions/{self.id}/reward", body, timeout_s=STORE_TIMEOUT_S)

    async def finish(self, stop_reason: StopReason) -> None:
        body = {"stop_reason": stop_reason.value}
        await self._gateway.control(f"/sessions/{self.id}/finish", body, timeout_s=STORE_TIMEOUT_S)


def refusal(url: str, status: int, data: bytes, wait: float | None, *, repeatable: bool) -> Exception:
    """What an error answer means to its caller.

    429 and 503 with a Retry-After (`wait`, seconds) say that nothing was done: even a model call may be repeated.
    """
    try:
        error = orjson.loads(data)["error"]
        code, message, param = error.get("code"), str(error.get("message")), str(error.get("param"))
    except (ValueError, KeyError, TypeError, AttributeError):
        code, message, param = None, data[:200].decode(errors="replace"), ""
    if code == CONTEXT_CODE:
        return ContextOverflow(message)
    if code == LIMIT_CODE:
        return SessionLimitReached(message, param.removeprefix("limits."))
    text = f"{url} answered {status}: {message}"
    if (status in (429, 503) and wait is not None) or (status in (429, 502, 503, 504) and repeatable):
        return Retryable(text, wait)
    return Refused(text, code)
