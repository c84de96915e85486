"""Plays one episode of an agent program: it calls a scripted policy, and is graded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentrl.env.check.child.bench import Bench
from agentrl.env.check.child.endpoint import MODEL, Endpoint
from agentrl.env.check.child.instance import Instance
from agentrl.env.check.plan import HUNG_STATUS, MAX_TURNS
from agentrl.env.check.policies import Policy as Scripted
from agentrl.env.check.policies import Turn
from agentrl.env.check.records import CallRecord, EpisodeRecord
from agentrl.env.policy import Policy
from agentrl.env.program import scores
from agentrl.errors import EnvironmentFault, SessionLimitReached
from agentrl.messages import Message
from agentrl.types import Task

_KEY = "scripted-policy"


class ProgramPlayer:
    def __init__(self, bench: Bench, record: EpisodeRecord, task: Task, instance: Instance) -> None:
        self.record = record
        self._bench = bench
        self._task = task
        self._instance = instance
        self._scripted: Scripted | None = None

    async def play(self, scripted: Scripted) -> None:
        """Runs and grades; the instance was made."""
        self._scripted = scripted
        endpoint = Endpoint(self._ask)
        try:
            policy = self._policy(endpoint.base_url)
            ran, result = await self._instance.call("run", self._task, policy)
        finally:
            endpoint.close()
        self._add(ran)
        if ran.raised is not None and ran.raised.type != "SessionLimitReached":
            return
        graded, reward = await self._instance.call("grade", self._task, result)
        _read_reward(graded, reward, policy.roles)
        graded.terminated = graded.raised is None
        self._add(graded)
        self.record.ended = graded.terminated

    def _add(self, call: CallRecord) -> None:
        if call.raised is not None and call.raised.type == "SessionLimitReached":
            call.raised = None  # a limit ended it, as it would in a run
        self.record.calls.append(call)
        if call.hung:
            self._bench.emit(self.record)
            self._bench.exits.leave(HUNG_STATUS)

    def _policy(self, base_url: str) -> Policy:
        program = self._instance.env
        made = Policy(base_url=base_url, api_key=_KEY, model=MODEL, ask=self._asked)
        roles = dict.fromkeys(getattr(program, "roles", {}) or {}, made)
        return Policy(base_url=base_url, api_key=_KEY, model=MODEL, ask=self._asked, roles=roles)

    def _asked(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], _: int | None) -> Any:
        reply = self._ask([Message(message) for message in messages], list(tools))
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return reply  # a plain function has nothing to await with
        return _soon(reply)

    def _ask(self, messages: list[Message], tools: list[Mapping[str, Any]]) -> Message:
        asks = [call for call in self.record.calls if call.method == "ask"]
        if len(asks) >= MAX_TURNS:
            raise SessionLimitReached(f"the policy was called {MAX_TURNS} times", "max_calls")
        assert self._scripted is not None
        reply = self._scripted(Turn(messages, tools, len(asks)))
        said = orjson.loads(orjson.dumps(messages, default=repr))
        self.record.calls.append(CallRecord(method="ask", observation=said, action=dict(reply)))
        return Message(reply)


async def _soon(reply: Message) -> Message:
    await asyncio.sleep(0)
    return reply


def _read_reward(record: CallRecord, result: Any, roles: Mapping[str, Any]) -> None:
    record.reward_text = repr(result)[:100]
    try:
        found = scores("the program", result, roles)
    except EnvironmentFault as error:
        record.reward_kind = "not_finite" if "finite" in str(error) else "not_a_number"
        return
    record.reward = next(iter(found.values())).reward
    record.reward_kind = "missing" if record.reward is None else "number"
