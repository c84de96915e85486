"""What an episode needs of the gateway.

HTTP in production (`agentrl.rollout.client`), a script in tests (`agentrl.rollout.scripted`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from agentrl.messages import Message
from agentrl.types import Limits, Mode, Sampling, StopReason, Task


class SessionRequest(Struct, frozen=True, kw_only=True):
    """What a session is opened with. Made by the episode, taken by the gateway."""

    task: Task
    mode: Mode
    sampling: Sampling  # pinned: no call of the session can change it
    limits: Limits
    metadata: dict[str, Any] = {}


class Completion(Struct, frozen=True, kw_only=True):
    """One assistant message, as the gateway gave it."""

    message: Message
    finish_reason: str  # "length" when the token limit cut it
    num_tokens: int  # sampled


class Session(Protocol):
    """One episode's view of the policy. Every method raises GatewayError: the gateway refused or did not answer."""

    id: str

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        """The next assistant message. Raises ContextOverflow when the messages leave no room for one, EnvironmentFault
        when the gateway does not take the messages or tools at all.

        Sampled at most once: a request that may have reached an engine is not sent again.
        """
        ...

    async def reward(self, reward: float | None, components: Mapping[str, float | None]) -> None: ...

    async def finish(self, stop_reason: StopReason) -> None:
        """Seals the session: its trajectory is in the store when this returns."""
        ...


class Gateway(Protocol):
    async def open_session(self, request: SessionRequest) -> Session: ...

    async def close(self) -> None: ...
