"""One episode of an adapter with a scripted policy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentrl.env import registry
from agentrl.messages import Message, assistant
from agentrl.rollout.episode import run_episode
from agentrl.rollout.scripted import ScriptedGateway, ScriptedSession
from agentrl.types import Episode, Limits, Sampling, Task

ADAPTERS = "agentrl.env.adapters"


async def play(
    env_id: str | Callable[[], Any],
    policy: Any,
    *,
    task: Task | None = None,
    env_timeout_s: float = 20.0,
    max_calls: int = 20,
    **kwargs: Any,
) -> tuple[Episode, ScriptedSession]:
    """`policy` is a function of the conversation, or the replies in order."""
    if isinstance(policy, list):
        replies = iter(policy)
        policy = lambda messages: next(replies)  # noqa: E731
    gateway = ScriptedGateway(policy)
    episode = await run_episode(
        (lambda: registry.make(env_id, **kwargs)) if isinstance(env_id, str) else env_id,
        task or Task(id="t1", env_id="adapter", seed=1),
        gateway,
        limits=Limits(max_calls=max_calls),
        sampling=Sampling(),
        env_timeout_s=env_timeout_s,
    )
    return episode, gateway.sessions[0]


def call(name: str, arguments: str, call_id: str = "c1") -> Message:
    return assistant(
        None, tool_calls=[{"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]
    )


def said(episode: Episode, index: int) -> str:
    return Message(episode.messages[index]).text
