"""The gateway over HTTP: its control calls, and chat completions under a session's own key."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from agentrl.errors import ConfigError, EnvironmentFault, GatewayError
from agentrl.gateway.config import MAX_SAVE_S
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.json_client import JsonClient, Refused, completion
from agentrl.rollout.ports import Completion, Ending, SessionRequest
from agentrl.types import Limits, StopReason, Task

CONTROL_TIMEOUT_S = 60.0
STORE_TIMEOUT_S = MAX_SAVE_S + 60.0  # for calls that wait for the store: the gateway has given up before
DEADLINE_GRACE_S = 30.0
KEEPALIVE_S = 60.0  # the gateway's server keeps an idle connection for 75 s; a tool rarely takes longer
MODEL = "policy"
"""The gateway serves one policy; OpenAI's schema wants a name."""

ENVIRONMENT_CODES = ("invalid_request", "unknown_parameter", "unsupported_parameter", "body_too_large")
"""What the gateway says of messages or tools that it does not take, which are the environment's."""


class HttpGateway:
    """Opens sessions with the admin key. Belongs to one event loop."""

    def __init__(self, url: str, admin_key: str, config: RolloutConfig) -> None:
        self.url = url.rstrip("/")
        self._admin_key = admin_key
        self._request_timeout_s = config.request_timeout_s
        self._http = JsonClient(
            max_attempts=config.max_attempts, keepalive_s=KEEPALIVE_S, patience_s=config.gateway_wait_s
        )

    async def open_session(self, request: SessionRequest) -> HttpSession:
        pins = msgspec.to_builtins(request.sampling)
        try:
            task = orjson.loads(orjson.dumps(_task(request.task), option=orjson.OPT_SERIALIZE_NUMPY))
        except TypeError as error:
            raise ConfigError(f"the options of task {request.task.id} are not JSON: {error}") from error
        limits = _given(request.limits)
        if "deadline_s" in limits:  # the episode ends itself in time; this is for a worker that died
            limits["deadline_s"] += DEADLINE_GRACE_S
        body = {
            "task": task,
            "mode": request.mode,
            # max_tokens is asked for call by call, for the episode's own limit may leave less.
            "sampling": {
                name: value
                for name, value in pins.items()
                if value is not None and (name != "max_tokens" or request.pin_max_tokens)
            },
            "limits": limits,
            "metadata": request.metadata,
            "reward_by": "admin",
            "across_swaps": request.across_swaps,
        }
        opened = await self.control("/sessions", body)
        try:
            return HttpSession(self, str(opened["session_id"]), str(opened["base_url"]), str(opened["api_key"]))
        except KeyError as error:
            raise GatewayError(f"{self.url}/sessions answered without {error}; is it an agentrl gateway?") from None

    async def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        body = {"reward": reward, "components": dict(components)}
        await self.control(f"/sessions/{session_id}/reward", body, timeout_s=STORE_TIMEOUT_S)

    async def control(
        self, path: str, body: Mapping[str, Any], *, at: str | None = None, timeout_s: float = CONTROL_TIMEOUT_S
    ) -> dict[str, Any]:
        """A control call. All of them may be repeated, so a lost answer is asked for again.

        at: another address of the gateway than its public one.
        """
        return await self._http.post(f"{at or self.url}{path}", body, self._admin_key, timeout_s, repeatable=True)

    async def model_call(self, url: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A model call. Sent again where its connection broke, and then recognised by the gateway, though that was
        another process before; else only where no engine can have seen it.
        """
        return await self._http.post(
            url, body, key, self._request_timeout_s, repeatable=False, idempotency_key=secrets.token_hex(16)
        )

    async def close(self) -> None:
        await self._http.close()


class HttpSession:
    def __init__(self, gateway: HttpGateway, session_id: str, base_url: str, api_key: str) -> None:
        self.id = session_id
        self.base_url = base_url.rstrip("/")
        self.api_key = api_key
        self._gateway = gateway
        self._chat_url = f"{self.base_url}/chat/completions"
        self._at = self.base_url.partition("/sessions/")[0]  # its worker's own address, which saves a hop

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        body: dict[str, Any] = {"model": MODEL, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        if max_tokens is not None:
            body["max_tokens"] = max_tokens
        try:
            answer = await self._gateway.model_call(self._chat_url, body, self.api_key)
        except Refused as error:
            if error.code not in ENVIRONMENT_CODES:
                raise
            raise EnvironmentFault(f"the gateway does not take these messages or tools: {error}") from error
        return completion(answer, self._chat_url)

    async def reward(
        self,
        reward: float | None,
        components: Mapping[str, float | None],
        call_rewards: Mapping[str, float | None] | None = None,
    ) -> None:
        body: dict[str, Any] = {"reward": reward, "components": dict(components)}
        if call_rewards:
            body["call_rewards"] = dict(call_rewards)
        await self._gateway.control(f"/sessions/{self.id}/reward", body, at=self._at, timeout_s=STORE_TIMEOUT_S)

    async def finish(self, stop_reason: StopReason, *, limit_first: bool = False, conversation: bool = False) -> Ending:
        options = {"limit_first": limit_first, "conversation": conversation}
        body = {"stop_reason": stop_reason.value} | {name: True for name, asked in options.items() if asked}
        ended = await self._gateway.control(f"/sessions/{self.id}/finish", body, at=self._at, timeout_s=STORE_TIMEOUT_S)
        return Ending(
            stop_reason=ended.get("stop_reason"),
            calls=ended.get("calls", 0),
            unanswered=ended.get("unanswered", 0),
            messages=ended.get("messages") or [],
        )


def _task(task: Task) -> dict[str, Any]:
    fields = msgspec.structs.asdict(task)
    return {**fields, "limits": None if task.limits is None else _given(task.limits)}


def _given(limits: Limits) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(limits).items() if value is not None}
