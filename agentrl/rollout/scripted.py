"""The gateway's in-memory twin: a policy that is a Python function, and a record of all that was asked of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from agentrl.errors import GatewayError
from agentrl.messages import Message, assistant
from agentrl.rollout.ports import Completion, SessionRequest
from agentrl.types import StopReason

Reply = Message | str
Policy = Callable[[list[Message]], Reply | Awaitable[Reply]]
"""From the whole conversation to the next assistant message."""


class ScriptedSession:
    def __init__(self, session_id: str, request: SessionRequest, policy: Policy) -> None:
        self.id = session_id
        self.request = request
        self.prompts: list[list[Message]] = []  # one per call
        self.tools: list[dict[str, Any]] = []
        self.max_tokens: list[int | None] = []  # one per call
        self.final_reward: float | None = None
        self.components: dict[str, float | None] = {}
        self.stop_reason: StopReason | None = None
        self._policy = policy

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        """A token is a word here."""
        self._check_open()
        conversation = [Message(message) for message in messages]
        self.prompts.append(conversation)
        self.tools = [dict(tool) for tool in tools]
        self.max_tokens.append(max_tokens)
        reply = self._policy(conversation)
        if inspect.isawaitable(reply):
            reply = await reply
        message = assistant(reply) if isinstance(reply, str) else reply
        return Completion(message=message, finish_reason="stop", num_tokens=len(message.text.split()))

    async def reward(self, reward: float | None, components: Mapping[str, float | None]) -> None:
        self._check_open()
        self.final_reward = reward
        self.components = dict(components)

    async def finish(self, stop_reason: StopReason) -> None:
        self.stop_reason = stop_reason

    def _check_open(self) -> None:
        if self.stop_reason is not None:
            raise GatewayError(f"session {self.id} is finished")


class ScriptedGateway:
    def __init__(self, policy: Policy) -> None:
        self.sessions: list[ScriptedSession] = []
        self._policy = policy

    async def open_session(self, request: SessionRequest) -> ScriptedSession:
        session = ScriptedSession(f"session-{len(self.sessions)}", request, self._policy)
        self.sessions.append(session)
        return session

    async def close(self) -> None:
        """Nothing is held open."""
