"""One attempt at a task: environment and policy take turns until one of them, a limit or a failure ends it."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium

from agentrl.env.threads import HungCalls
from agentrl.errors import (
    AgentRLError,
    ConfigError,
    ContextOverflow,
    EnvironmentFault,
    EnvironmentTimeout,
    SessionLimitReached,
)
from agentrl.messages import Message
from agentrl.rollout.env_calls import EnvCalls
from agentrl.rollout.ports import Gateway, Session, SessionRequest
from agentrl.types import Episode, Limits, Mode, Sampling, StopReason, Task

log = logging.getLogger(__name__)


async def run_episode(
    make_env: Callable[[], gymnasium.Env[Any, Any]],
    task: Task,
    gateway: Gateway,
    *,
    limits: Limits,
    sampling: Sampling,
    mode: Mode = "train",
    metadata: Mapping[str, Any] | None = None,
    env_timeout_s: float = 60.0,
    hung: HungCalls | None = None,
) -> Episode:
    """Plays, posts the environment's reward, seals the session and closes the environment, whatever happens.

    Failures of the environment, the gateway and the engines are data in the episode, never exceptions; each is
    logged with its traceback. Cancelling raises CancelledError after the same clean-up.
    """
    request = SessionRequest(task=task, mode=mode, sampling=sampling, limits=limits, metadata=dict(metadata or {}))
    env = EnvCalls(make_env, name=task.env_id, timeout_s=env_timeout_s, hung=hung or HungCalls())
    run = _EpisodeRun(request, env, gateway)
    try:
        stop_reason, error = await run.play_to_an_end()
    except BaseException:
        await run.settle(StopReason.CANCELLED, None)
        raise
    settling = asyncio.create_task(run.settle(stop_reason, error))
    try:
        return await asyncio.shield(settling)
    except asyncio.CancelledError:
        await settling
        raise


class _EpisodeRun:
    def __init__(self, request: SessionRequest, env: EnvCalls, gateway: Gateway) -> None:
        self._request = request
        self._env = env
        self._gateway = gateway
        self._session: Session | None = None
        self._messages: list[Message] = []
        self._rewards: list[float | None] = []  # one per step
        self._turns = 0
        self._tokens = 0  # sampled, over all turns

    async def play_to_an_end(self) -> tuple[StopReason, str | None]:
        """The one place where an episode's failure becomes data: its stop reason and one sentence."""
        limit = self._request.limits.deadline_s
        try:
            async with asyncio.timeout(limit) as deadline:
                return await self._play(), None
        except ContextOverflow as error:
            return StopReason.CONTEXT, str(error)
        except SessionLimitReached as error:  # the gateway enforces them too; they usually end an episode here first
            return Limits.stop_reason(error.limit), str(error)
        except (EnvironmentFault, ConfigError) as error:
            log.exception("task %s: %s", self._request.task.id, error)
            timed_out = isinstance(error, EnvironmentTimeout)
            return StopReason.ENV_TIMEOUT if timed_out else StopReason.ENV_ERROR, str(error)
        except AgentRLError as error:
            log.exception("task %s: %s", self._request.task.id, error)
            return StopReason.POLICY_ERROR, str(error)
        except TimeoutError:
            if not deadline.expired():
                raise
            return StopReason.DEADLINE, f"the episode took longer than rollout.deadline_s = {limit:g} s"

    async def _play(self) -> StopReason:
        limits = self._request.limits
        self._session = await self._gateway.open_session(self._request)
        self._messages += await self._env.reset(self._request.task)
        tools = await self._env.tools()
        while True:
            max_tokens = self._max_tokens()
            if max_tokens == 0:
                return StopReason.MAX_TOKENS
            completion = await self._session.chat(self._messages, tools=tools, max_tokens=max_tokens)
            self._turns += 1
            self._tokens += completion.num_tokens
            self._messages.append(completion.message)
            step = await self._env.step(completion.message)
            self._rewards.append(step.reward)
            self._messages += step.observation
            if step.terminated:
                return StopReason.DONE
            if step.truncated:
                return StopReason.TRUNCATED
            if limits.max_calls is not None and self._turns >= limits.max_calls:
                return StopReason.MAX_TURNS

    def _max_tokens(self) -> int | None:
        """What the next message may have of the message's and the episode's limits. None is no limit."""
        per_message, per_episode = self._request.sampling.max_tokens, self._request.limits.max_tokens
        if per_episode is None:
            return per_message
        left = max(0, per_episode - self._tokens)
        return left if per_message is None else min(left, per_message)

    async def settle(self, stop_reason: StopReason, error: str | None) -> Episode:
        """Frees everything, and says what came of it."""
        try:
            await self._env.close()
        except (EnvironmentFault, ConfigError) as fault:
            log.exception("task %s: %s", self._request.task.id, fault)
        reward = self._reward() if stop_reason.by_policy else None
        if self._session is not None:
            try:
                await self._session.reward(reward, {"env": reward})
                await self._session.finish(stop_reason)
            except AgentRLError as fault:
                log.exception("task %s: %s", self._request.task.id, fault)
                stop_reason, error, reward = StopReason.POLICY_ERROR, error or str(fault), None
        return Episode(
            session_id="" if self._session is None else self._session.id,
            task=self._request.task,
            stop_reason=stop_reason,
            reward=reward,
            turns=self._turns,
            error=error,
            messages=[dict(message) for message in self._messages],
        )

    def _reward(self) -> float | None:
        """The sum over the steps. Missing when one is, or when there was none."""
        known = [reward for reward in self._rewards if reward is not None]
        if not known or len(known) < len(self._rewards):
            return None
        try:
            return math.fsum(known)
        except OverflowError:
            log.warning("task %s: the sum of its rewards is past the floats, so it is missing", self._request.task.id)
            return None
