"""One attempt of an agent program: it calls the policy itself, and is graded when it no longer can."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.env.policy import Policy
from agentrl.env.program import Score, scores
from agentrl.env.roles import Role
from agentrl.errors import AgentRLError
from agentrl.messages import Message
from agentrl.rollout.client import MODEL
from agentrl.rollout.outcome import played, reason_of
from agentrl.rollout.ports import Ending, Gateway, Session, SessionRequest
from agentrl.rollout.program_host import ProgramHost
from agentrl.rollout.seats import Seats
from agentrl.types import Episode, Limits, Mode, Sampling, StopReason, Task

log = logging.getLogger(__name__)


async def run_program(
    host: ProgramHost,
    task: Task,
    gateway: Gateway,
    *,
    limits: Limits,
    sampling: Sampling,
    mode: Mode = "train",
    metadata: Mapping[str, Any] | None = None,
    roles: Mapping[str, Role] | None = None,
) -> Episode:
    """Runs it, seals its sessions, grades it, posts the rewards and closes it once, whatever happens.

    Failures are data in the episode, as in `run_episode`; cancelling raises CancelledError after the same clean-up.
    """
    request = SessionRequest(
        task=task, mode=mode, sampling=sampling, limits=limits, metadata=dict(metadata or {}), pin_max_tokens=True
    )
    return await played(_ProgramRun(request, host, gateway, roles or {}), task, limits.deadline_s)


class _ProgramRun:
    def __init__(self, request: SessionRequest, host: ProgramHost, gateway: Gateway, roles: Mapping[str, Role]) -> None:
        self._request = request
        self._host = host
        self._gateway = gateway
        self._roles = roles
        self._seats = Seats(request, roles)
        self._result: Any = None
        self._returned = False

    async def play(self) -> StopReason:
        await self._seats.open(self._gateway)
        await self._host.make()
        self._result = await self._host.run(self._request.task, self._policy())
        self._returned = True
        return StopReason.DONE

    def _policy(self) -> Policy:
        loop = asyncio.get_running_loop()
        policies = {seat.name: _policy_of(seat.session, loop) for seat in self._seats}
        first = policies[self._seats.first.name]
        return Policy(
            base_url=first.base_url,
            api_key=first.api_key,
            model=first.model,
            ask=first.ask,
            roles={} if "" in policies else policies,
        )

    async def settle(self, stop_reason: StopReason, error: str | None) -> Episode:
        """Seals first: neither the grader nor a process that was left over can call the policy."""
        found: dict[str, Score] = {}
        try:
            await self._host.stop()
            stop_reason, error = await self._seal(stop_reason, error)
            if stop_reason.by_policy:
                found = await self._grade()
                await self._post(found)
        except AgentRLError as fault:
            log.exception("task %s: %s", self._request.task.id, fault)
            stop_reason, error, found = reason_of(fault), error or str(fault), {}
        finally:
            await self._close()
        return self._seats.episode(stop_reason, error, {name: score.reward for name, score in found.items()})

    async def _seal(self, stop_reason: StopReason, error: str | None) -> tuple[StopReason, str | None]:
        """The stop reason after what the gateway knows: a limit that it refused a call for may be why a program failed,
        and a program may have gone on without an answer that it was owed."""
        limit_first = stop_reason in (StopReason.DONE, StopReason.ENV_ERROR)
        endings: Sequence[Ending] = await self._seats.finish(stop_reason, limit_first=limit_first, conversation=True)
        for seat, ending in zip(self._seats, endings, strict=True):
            seat.turns, seat.messages = ending.calls, [Message(message) for message in ending.messages]
        if limit_first and (unanswered := sum(ending.unanswered for ending in endings)):
            return (
                StopReason.POLICY_ERROR,
                f"{unanswered} requests of the program were not answered; see the gateway's log",
            )
        others = [ending.stop_reason for ending in endings if ending.stop_reason not in (None, stop_reason)]
        if limit_first and others:
            return _ended_by(str(others[0]))
        return stop_reason, error

    async def _grade(self) -> dict[str, Score]:
        name, task = self._request.task.env_id, self._request.task
        if not self._returned and not self._host.grades:  # a limit ended it before it had earned anything
            return {seat.name: Score(0.0, {"env": 0.0}) for seat in self._seats}
        return scores(name, await self._host.grade(task, self._result), self._roles)

    async def _post(self, found: Mapping[str, Score]) -> None:
        posts = (
            self._gateway.set_reward(seat.session.id, found[seat.name].reward, found[seat.name].components)
            for seat in self._seats
        )
        await asyncio.gather(*posts)

    async def _close(self) -> None:
        try:
            await self._host.close()
        except AgentRLError as fault:
            log.exception("task %s: %s", self._request.task.id, fault)


def _ended_by(reason: str) -> tuple[StopReason, str | None]:
    """A limit of the session; or somebody else has finished it, which is nothing that the policy did."""
    if reason in list(StopReason) and StopReason(reason) not in (StopReason.DONE, StopReason.CANCELLED):
        return StopReason(reason), None
    return StopReason.POLICY_ERROR, f"the session was finished as {reason!r} while its program ran"


def _policy_of(session: Session, loop: asyncio.AbstractEventLoop) -> Policy:
    """`loop` is the one that the session belongs to; the program lives in threads of its own."""

    def ask(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], max_tokens: int | None) -> Any:
        chat = session.chat(messages, tools=tools, max_tokens=max_tokens)
        answering = asyncio.run_coroutine_threadsafe(chat, loop)
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return answering.result().message

        async def wait() -> Any:
            return (await asyncio.wrap_future(answering)).message

        return wait()

    return Policy(base_url=session.base_url, api_key=session.api_key, model=MODEL, ask=ask)
