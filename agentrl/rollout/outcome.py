"""From an attempt to an episode: the one place where a failure becomes data, a stop reason and one sentence."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from agentrl.env.uninterrupted import to_the_end
from agentrl.errors import AgentRLError, ConfigError, ContextOverflow, EnvironmentFault, SessionLimitReached
from agentrl.types import Episode, Limits, StopReason, Task

log = logging.getLogger(__name__)


class Attempt(Protocol):
    """One attempt at a task."""

    async def play(self) -> StopReason:
        """To its end. May be cancelled."""
        ...

    async def settle(self, stop_reason: StopReason, error: str | None) -> Episode:
        """Seals what is open, frees what is held, and says what it was worth. Called once, and never cancelled."""
        ...


async def played(attempt: Attempt, task: Task, deadline_s: float | None) -> Episode:
    """Plays it within `deadline_s` seconds, and settles it however that ended.

    Failures are logged with their tracebacks. Raises what is a fault of the rollout itself, and CancelledError.
    """
    try:
        stop_reason, error = await _outcome(attempt, task, deadline_s)
    except BaseException:
        await to_the_end(attempt.settle(StopReason.CANCELLED, None))
        raise
    return await to_the_end(attempt.settle(stop_reason, error))


async def _outcome(attempt: Attempt, task: Task, deadline_s: float | None) -> tuple[StopReason, str | None]:
    """Why it ended, and what went wrong."""
    try:
        async with asyncio.timeout(deadline_s) as deadline:
            return await attempt.play(), None
    except ContextOverflow as error:
        return StopReason.CONTEXT, str(error)
    except SessionLimitReached as error:
        return Limits.stop_reason(error.limit), str(error)
    except AgentRLError as error:
        log.exception("task %s: %s", task.id, error)
        return reason_of(error), str(error)
    except TimeoutError:
        if not deadline.expired():
            raise
        return StopReason.DEADLINE, f"the episode took longer than its deadline_s of {deadline_s:g} s"


def reason_of(failure: AgentRLError) -> StopReason:
    """Why an episode ended that failed like this."""
    if isinstance(failure, EnvironmentFault):
        return StopReason(failure.reason)
    return StopReason.ENV_ERROR if isinstance(failure, ConfigError) else StopReason.POLICY_ERROR
