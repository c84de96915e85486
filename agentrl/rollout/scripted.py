"""The gateway's in-memory twin: a policy that is a Python function, and a record of all that was asked of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl.errors import GatewayError, SessionLimitReached
from agentrl.messages import Message, assistant
from agentrl.rollout.ports import Completion, Ending, SessionRequest
from agentrl.types import Limits, StopReason

Reply = Message | str
Policy = Callable[[list[Message]], Reply | Awaitable[Reply]]
"""From the whole conversation to the next assistant message."""


class ScriptedSession:
    """Its `base_url` leads nowhere: only `chat` is answered. It keeps to `max_calls` as the gateway does."""

    def __init__(self, session_id: str, request: SessionRequest, policy: Policy) -> None:
        self.id = session_id
        self.base_url = f"http://scripted.invalid/sessions/{session_id}/v1"
        self.api_key = f"key-of-{session_id}"
        self.request = request
        self.prompts: list[list[Message]] = []  # one per call
        self.tools: list[dict[str, Any]] = []
        self.max_tokens: list[int | None] = []  # one per call
        self.final_reward: float | None = None
        self.components: dict[str, float | None] = {}
        self.call_rewards: dict[str, float | None] = {}
        self.stop_reason: StopReason | None = None
        self.unanswered = 0  # told when it is sealed
        self._refused_for: str | None = None
        self._said: list[dict[str, Any]] = []
        self._policy = policy

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        """A token is a word here."""
        self._check_open()
        self._check_calls()
        conversation = [Message(message) for message in messages]
        self.prompts.append(conversation)
        self.tools = [dict(tool) for tool in tools]
        self.max_tokens.append(max_tokens)
        call_id = f"{self.id}-call-{len(self.prompts) - 1}"
        reply = self._policy(conversation)
        if inspect.isawaitable(reply):
            reply = await reply
        message = assistant(reply) if isinstance(reply, str) else reply
        self._said = [*conversation, message]
        num_tokens = len(message.text.split())
        return Completion(message=message, finish_reason="stop", num_tokens=num_tokens, call_id=call_id)

    async def reward(
        self,
        reward: float | None,
        components: Mapping[str, float | None],
        call_rewards: Mapping[str, float | None] | None = None,
    ) -> None:
        if call_rewards:
            self._check_open()
        self.final_reward = reward
        self.components = dict(components)
        self.call_rewards.update(call_rewards or {})

    async def finish(self, stop_reason: StopReason, *, limit_first: bool = False, conversation: bool = False) -> Ending:
        if self.stop_reason is None:
            limited = Limits.stop_reason(self._refused_for) if limit_first and self._refused_for else None
            self.stop_reason = limited or stop_reason
        messages = [dict(message) for message in self._said] if conversation else []
        return Ending(
            stop_reason=self.stop_reason, calls=len(self.prompts), unanswered=self.unanswered, messages=messages
        )

    def _check_open(self) -> None:
        if self.stop_reason is not None:
            raise GatewayError(f"session {self.id} is finished")

    def _check_calls(self) -> None:
        limit = self.request.limits.max_calls
        if limit is not None and len(self.prompts) >= limit:
            self._refused_for = "max_calls"
            raise SessionLimitReached(f"session {self.id} has reached limits.max_calls", "max_calls")


class ScriptedGateway:
    def __init__(self, policy: Policy) -> None:
        self.sessions: list[ScriptedSession] = []
        self._policy = policy

    async def open_session(self, request: SessionRequest) -> ScriptedSession:
        session = ScriptedSession(f"session-{len(self.sessions)}", request, self._policy)
        self.sessions.append(session)
        return session

    async def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        session = next(session for session in self.sessions if session.id == session_id)
        await session.reward(reward, components)

    async def close(self) -> None:
        """Nothing is held open."""
