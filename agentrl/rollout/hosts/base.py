"""Where an environment lives, as an episode sees it: in a thread of the worker, or in a process of its own."""

from __future__ import annotations

import abc
from typing import Any

from agentrl.env.base import Observation
from agentrl.env.contract import Step
from agentrl.messages import Message
from agentrl.types import Task


class EnvHost(abc.ABC):
    """One environment for one episode, called from an event loop that it can neither block nor end.

    Every call has a time limit, and every answer is checked. Each raises an EnvironmentFault, whose `reason` is the
    episode's stop reason, or ConfigError for an id that names nothing. Cancelling one abandons the environment.
    """

    @abc.abstractmethod
    async def reset(self, task: Task) -> Observation:
        """Makes the environment, and gives the first messages of the task."""

    @abc.abstractmethod
    async def tools(self) -> list[dict[str, Any]]:
        """OpenAI's `tools`; none for a gymnasium environment that has no such attribute."""

    @abc.abstractmethod
    async def step(self, action: Message) -> Step: ...

    @abc.abstractmethod
    async def close(self) -> None:
        """Closes what was made, and frees everything it held. An environment that hangs is not called again."""
