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
    across_swaps: bool = False  # an eval session in the middle of training, which new weights must not end
    pin_max_tokens: bool = False  # for calls that an agent program makes, where nobody else bounds a message


class Completion(Struct, frozen=True, kw_only=True):
    """One assistant message, as the gateway gave it."""

    message: Message
    finish_reason: str  # "length" when the token limit cut it
    num_tokens: int  # sampled
    call_id: str = ""  # by which a reward names the call


class Ending(Struct, frozen=True, kw_only=True):
    """What a session says when it is sealed. Made by the gateway, taken by the episode."""

    stop_reason: str | None = None  # as it is stored: a limit that refused a call may have come first
    calls: int = 0
    unanswered: int = 0  # requests that infrastructure failed, and that no retry has answered since
    messages: list[dict[str, Any]] = []  # the conversation up to the last answer, when it was asked for


class Session(Protocol):
    """One episode's view of the policy. Every method raises GatewayError: the gateway refused or did not answer."""

    id: str
    base_url: str  # ends in /v1
    api_key: str  # opens this session alone

    async def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]], max_tokens: int | None
    ) -> Completion:
        """The next assistant message. Raises ContextOverflow when the messages leave no room for one, EnvironmentFault
        when the gateway does not take the messages or tools at all.

        Sampled at most once: a request that may have reached an engine is not sent again.
        """
        ...

    async def reward(
        self,
        reward: float | None,
        components: Mapping[str, float | None],
        call_rewards: Mapping[str, float | None] = ...,
    ) -> None:
        """The session's reward, before or after its end, and before it those of its calls by their ids."""
        ...

    async def finish(self, stop_reason: StopReason, *, limit_first: bool = False, conversation: bool = False) -> Ending:
        """Seals the session: no later call is answered, and its trajectory is in the store when this returns.

        `limit_first`: where a call was refused for a limit, that is the stop reason. `conversation`: tell the messages.
        """
        ...


class Gateway(Protocol):
    async def open_session(self, request: SessionRequest) -> Session: ...

    async def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        """Of a session that has ended."""
        ...

    async def close(self) -> None: ...
