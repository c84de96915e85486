"""One attempt at a task: environment and policy take turns until one of them, a limit or a failure ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import gymnasium

from agentrl.env.contract import Step
from agentrl.env.roles import Role
from agentrl.env.threads import HungCalls
from agentrl.errors import AgentRLError, ConfigError, EnvironmentFault
from agentrl.rollout.hosts.base import EnvHost
from agentrl.rollout.hosts.thread import ThreadHost
from agentrl.rollout.outcome import played
from agentrl.rollout.ports import Gateway, SessionRequest
from agentrl.rollout.seats import Seat, Seats
from agentrl.types import Episode, Limits, Mode, Sampling, StopReason, Task

log = logging.getLogger(__name__)


async def run_episode(
    env: EnvHost | Callable[[], gymnasium.Env[Any, Any]],
    task: Task,
    gateway: Gateway,
    *,
    limits: Limits,
    sampling: Sampling,
    mode: Mode = "train",
    metadata: Mapping[str, Any] | None = None,
    roles: Mapping[str, Role] | None = None,
    env_timeout_s: float = 60.0,
    hung: HungCalls | None = None,
) -> Episode:
    """Plays, posts the environment's rewards, seals the session and closes the environment once, whatever happens.

    Failures of the environment, the gateway and the engines are data in the episode, never exceptions; each is
    logged with its traceback. Cancelling raises CancelledError after the same clean-up. With `roles` there is a session
    for each of them, and the episodes of all but the first are in `Episode.others`.

    A function that makes the environment has it in this process, under `env_timeout_s` and `hung`.
    """
    request = SessionRequest(task=task, mode=mode, sampling=sampling, limits=limits, metadata=dict(metadata or {}))
    if not isinstance(env, EnvHost):
        env = ThreadHost(env, name=task.env_id, timeout_s=env_timeout_s, hung=hung or HungCalls())
    return await played(_EpisodeRun(request, env, gateway, roles or {}), task, limits.deadline_s)


class _EpisodeRun:
    def __init__(self, request: SessionRequest, env: EnvHost, gateway: Gateway, roles: Mapping[str, Role]) -> None:
        self._request = request
        self._env = env
        self._gateway = gateway
        self._seats = Seats(request, roles)
        self._tokens = 0  # sampled, over all turns
        self._tool_calls = 0

    async def play(self) -> StopReason:
        limits = self._request.limits
        await self._seats.open(self._gateway)
        seat = self._seats.first
        seat.messages += await self._env.reset(self._request.task)
        while True:
            max_tokens = self._max_tokens()
            if max_tokens == 0:
                return StopReason.MAX_TOKENS
            step = await self._turn(seat, max_tokens)
            if step is None:
                return StopReason.MAX_TOOL_CALLS
            seat = self._next(seat, step)
            seat.messages += step.observation
            if step.terminated:
                return StopReason.DONE
            if step.truncated:
                return StopReason.TRUNCATED
            if limits.max_calls is not None and self._seats.turns >= limits.max_calls:
                return StopReason.MAX_TURNS

    async def _turn(self, seat: Seat, max_tokens: int | None) -> Step | None:
        """One message and what the environment makes of it. None for a message past the limit of tool calls: the
        environment never sees it, and it earns nothing."""
        if seat.tools is None:
            seat.tools = await self._env.tools()
        completion = await seat.session.chat(seat.messages, tools=seat.tools, max_tokens=max_tokens)
        seat.turns += 1
        seat.messages.append(completion.message)
        self._tokens += completion.num_tokens
        self._tool_calls += len(completion.message.tool_calls)
        allowed = self._request.limits.max_tool_calls
        step = None if allowed is not None and self._tool_calls > allowed else await self._env.step(completion.message)
        reward = 0.0 if step is None else step.reward
        seat.rewards.append(reward)
        if completion.call_id:
            seat.call_rewards[completion.call_id] = reward
        return step

    def _next(self, seat: Seat, step: Step) -> Seat:
        """Who speaks next. Raises EnvironmentFault for a role that is not there."""
        for name, reward in step.role_rewards.items():
            self._seat(name, "info['role_rewards']").rewards.append(reward)
        if step.role is None or not seat.name:  # without roles an info says what it likes
            return seat
        return self._seat(step.role, "info['role']")

    def _seat(self, name: str, where: str) -> Seat:
        found = self._seats.get(name)
        if found is None:
            roles = self._seats.names or "none"
            raise EnvironmentFault(f"{self._request.task.env_id}: {where} names {name!r}; its roles are {roles}")
        return found

    async def _failure(self, posting: Coroutine[Any, Any, Any]) -> str | None:
        """What the gateway did not take; the next thing is told to it all the same."""
        try:
            await posting
        except AgentRLError as fault:
            log.exception("task %s: %s", self._request.task.id, fault)
            return str(fault)
        return None

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
        rewards = {seat.name: seat.earned() if stop_reason.by_policy else None for seat in self._seats}
        parts = {name: {"env": reward} for name, reward in rewards.items()}
        if (failure := await self._failure(self._seats.reward(rewards, parts))) is not None:
            stop_reason, error, rewards = StopReason.POLICY_ERROR, error or failure, {}
        if (failure := await self._failure(self._seats.finish(stop_reason))) is not None:
            stop_reason, error, rewards = StopReason.POLICY_ERROR, error or failure, {}
        return self._seats.episode(stop_reason, error, rewards)
