"""A policy that somebody else serves, behind the same port as the gateway: for evaluation and for play, never training.

An endpoint gives text, not token ids, so its trajectories hold messages and rewards and every call is untrainable.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from agentrl.digest import digest_of
from agentrl.errors import ConfigError, GatewayError
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.json_client import JsonClient, Refused, completion
from agentrl.rollout.ports import Completion, Ending, SessionRequest
from agentrl.types import Call, FinishReason, StopReason, Trajectory

UNTRAINABLE = "no_token_ids"
CHECK_TIMEOUT_S = 30.0


class TrajectorySink(Protocol):
    def save(self, trajectory: Trajectory) -> None: ...

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None: ...


class EndpointGateway:
    """Sessions over `POST {url}/chat/completions`. Belongs to one event loop. `sink` gets every trajectory."""

    def __init__(
        self, url: str, *, model: str, api_key: str | None, config: RolloutConfig, sink: TrajectorySink
    ) -> None:
        self.base_url = url.rstrip("/")
        self.chat_url = f"{self.base_url}/chat/completions"
        self.model = model
        self.api_key = api_key
        self.sink = sink
        self._timeout_s = config.request_timeout_s
        self._http = JsonClient(max_attempts=config.max_attempts)
        self._limit_name = "max_tokens"  # or "max_completion_tokens", where the endpoint insists

    async def check(self) -> None:
        """One token is asked for. Raises ConfigError, in one sentence, when the endpoint does not give it."""
        body = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}]}
        try:
            await self.ask(body, max_tokens=1, timeout_s=CHECK_TIMEOUT_S)
        except GatewayError as error:
            raise ConfigError(f"the endpoint does not answer for model {self.model!r}: {error}") from error

    async def open_session(self, request: SessionRequest) -> EndpointSession:
        return EndpointSession(self, request)

    async def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        await asyncio.to_thread(self.sink.set_reward, session_id, reward, components)

    async def ask(self, body: dict[str, Any], *, max_tokens: int | None, timeout_s: float | None = None) -> Completion:
        """Raises as `agentrl.rollout.ports.Session.chat` does. May be sent again: nothing is recorded over there."""
        limited = body if max_tokens is None else body | {self._limit_name: max_tokens}
        try:
            answer = await self._post(limited, timeout_s)
        except Refused as error:
            if self._limit_name == "max_tokens" and "max_completion_tokens" in str(error):
                self._limit_name = "max_completion_tokens"
                return await self.ask(body, max_tokens=max_tokens, timeout_s=timeout_s)
            raise
        return completion(answer, self.chat_url)

    async def close(self) -> None:
        await self._http.close()

    async def _post(self, body: Mapping[str, Any], timeout_s: float | None) -> Any:
        return await self._http.post(self.chat_url, body, self.api_key, timeout_s or self._timeout_s, repeatable=True)


class EndpointSession:
    """One episode: keeps what was said, and hands it to the sink when it is finished."""

    def __init__(self, gateway: EndpointGateway, request: SessionRequest) -> None:
        self.id = uuid.uuid4().hex
        self.base_url = gateway.base_url
        self.api_key = gateway.api_key or ""
        self._gateway = gateway
        self._request = request
        self._calls: list[Call] = []
        self._conversation: list[dict[str, Any]] = []
        self._unanswered = 0  # 1 when the last request had no answer
        self._said = 0  # messages of the conversation that earlier calls hold
        self._reward: float | None = None
        self._components: dict[str, float | None] = {}
        self._created_at = time.time()

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        sampling = self._request.sampling
        body: dict[str, Any] = {
            "model": self._gateway.model,
            "messages": list(messages),
            "temperature": sampling.temperature,
        }
        if tools:
            body["tools"] = list(tools)
        started = time.time()
        try:
            answer = await self._gateway.ask(body, max_tokens=max_tokens)
        except GatewayError:
            self._unanswered = 1
            raise
        self._unanswered = 0
        self._calls.append(self._call(messages, answer, started))
        self._said = len(messages) + 1
        self._conversation = [*(dict(message) for message in messages), dict(answer.message)]
        return msgspec.structs.replace(answer, call_id=self._calls[-1].call_id)

    async def reward(
        self,
        reward: float | None,
        components: Mapping[str, float | None],
        call_rewards: Mapping[str, float | None] | None = None,
    ) -> None:
        self._reward, self._components = reward, dict(components)
        for call in self._calls:
            call.reward = (call_rewards or {}).get(call.call_id, call.reward)

    async def finish(self, stop_reason: StopReason, *, limit_first: bool = False, conversation: bool = False) -> Ending:
        """There is nothing to seal over there, and no limit but the episode's own."""
        trajectory = Trajectory(
            session_id=self.id,
            task=self._request.task,
            mode="eval",
            stop_reason=stop_reason.value,
            reward=self._reward,
            components=self._components,
            calls=self._calls,
            metadata=self._request.metadata,
            created_at=self._created_at,
            finished_at=time.time(),
        )
        await asyncio.to_thread(self._gateway.sink.save, trajectory)
        return Ending(
            stop_reason=stop_reason.value,
            calls=len(self._calls),
            unanswered=self._unanswered,
            messages=self._conversation,
        )

    def _call(self, messages: Sequence[Mapping[str, Any]], answer: Completion, started: float) -> Call:
        cut: FinishReason = "length" if answer.finish_reason == "length" else "stop"
        return Call(
            call_id=f"{self.id}-{len(self._calls)}",
            prompt_token_ids=[],
            prompt_digest=digest_of([]),
            token_ids=[],
            logprobs=None,
            versions=[],
            finish_reason=cut,
            engine_id=self._gateway.chat_url,
            sampling=self._request.sampling,
            message=dict(answer.message),
            parent=len(self._calls) - 1 if self._calls else None,
            untrainable=UNTRAINABLE,
            messages=[dict(message) for message in messages[self._said :]],
            started_at=started,
            ended_at=time.time(),
        )
