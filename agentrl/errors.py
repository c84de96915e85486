"""Every error that agentrl raises on purpose. Each message names the boundary, the values and the fix.

A `ConfigError` ends a command with exit status 2, any other `AgentRLError` with 1 (`agentrl.cli.main`).
"""

from __future__ import annotations

from typing import ClassVar


class AgentRLError(Exception):
    """Base of all errors raised on purpose."""


class ConfigError(AgentRLError):
    """The user's configuration or command line is wrong; nothing was started."""


class RunError(AgentRLError):
    """A run could not start or go on."""


class Interrupted(AgentRLError):
    """Somebody wanted the run to end: no failure."""


class EngineError(AgentRLError):
    """An engine failed: it died, stalled, or broke its contract."""


class EngineUnavailable(EngineError):
    """No routable engine, or the one asked did not answer in time. May pass; a retry is allowed."""


class ContextOverflow(EngineError):
    """The prompt leaves no room for a sampled token in the engine's context. Never passes; do not retry."""


class SwapError(EngineError):
    """A weight swap failed; the version was not raised and the engine must not be routed to."""


class EnvironmentFault(AgentRLError):
    """An environment raised, hung or broke the `Env` contract. Costs its own episode only."""

    reason: ClassVar[str] = "env_error"
    """The `StopReason` of the episode that it ends."""


class EnvironmentTimeout(EnvironmentFault):
    """A call of an environment or one of its tools did not return in time."""

    reason = "env_timeout"


class EnvironmentCrash(EnvironmentFault):
    """The process of an environment ended, or stopped answering as one."""

    reason = "env_crash"


class EnvironmentOutOfMemory(EnvironmentFault):
    """An environment took more memory than it may."""

    reason = "env_memory"


class EnvironmentTooManyProcesses(EnvironmentFault):
    """An environment started more processes than it may."""

    reason = "env_processes"


class SandboxFault(EnvironmentFault):
    """The sandbox itself failed: infrastructure, never a verdict on the program that was to run in it."""


class SandboxUnavailable(SandboxFault, ConfigError):
    """This machine offers no isolation, and nobody allowed to run without."""


class GatewayError(AgentRLError):
    """The gateway refused a request or did not answer: infrastructure, never a wrong answer of the policy."""


class SessionLimitReached(GatewayError):
    """A limit of the session is used up. `limit` is its name: max_calls, max_tokens, max_tool_calls or deadline_s."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


class RewardError(AgentRLError):
    """A reward service answered wrongly or not at all. The reward is missing, never zero."""


class StoreError(AgentRLError):
    """The trajectory store refused or lost something."""


class StoreUnavailable(StoreError):
    """The database is busy, full or out of reach. May pass; a retry is allowed."""


class TrajectoryNotFound(StoreError):
    """The store holds no trajectory of this id."""


class TrainerError(AgentRLError):
    """A trainer rank failed or was given a batch it cannot train."""


class TrainerLost(TrainerError):
    """A trainer rank died or hangs. New ranks, brought to where these were, can do what it was asked for."""


class CheckpointError(AgentRLError):
    """A checkpoint is missing, not whole or damaged, could not be written, or is not one of this trainer."""


class AuditError(AgentRLError):
    """A stored run breaks an invariant; names the first offender."""


def first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that a task group failed with: the first of it, however deep."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error
