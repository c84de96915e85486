"""Plays one episode on one instance."""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.env.check.child.bench import Bench
from agentrl.env.check.child.instance import Instance
from agentrl.env.check.child.program_player import ProgramPlayer
from agentrl.env.check.child.reference import bound
from agentrl.env.check.plan import HUNG_STATUS, MAX_TURNS
from agentrl.env.check.policies import SCRIPTED, Policy, ReferencePolicy, Turn, scripted
from agentrl.env.check.records import CallRecord, EpisodeRecord, Kind
from agentrl.messages import Message
from agentrl.types import Task

REFERENCE = "reference"


def policies(bench: Bench) -> Sequence[str]:
    return [*SCRIPTED, REFERENCE] if bench.solve is not None else SCRIPTED


class Player:
    """An episode that is taken turn by turn, so that two can alternate."""

    def __init__(self, bench: Bench, kind: Kind, task: Task, policy: str, instance: Instance | None = None) -> None:
        self.record = EpisodeRecord(kind=kind, task_id=task.id, policy=policy)
        self.instance = instance or Instance(bench)
        self._bench = bench
        self._task = task
        self._policy: Policy | None = None
        self._messages: list[Message] = []
        self._tools: list[dict[str, object]] = []
        self.over = False

    async def begin(self) -> None:
        if self.instance.env is None:
            self._add(await self._measured(self.instance.make()))
        if not self.over:
            self._add(await self._measured(self.instance.reset(self._task)))
        if not self.over:
            read = await self._measured(self.instance.tools())
            self._add(read)
            self._tools = list(read.tools or [])
        if not self.over:
            self._policy = self._made_policy()

    async def turn(self) -> None:
        """One action and its answer."""
        assert self._policy is not None
        index = len(self.record.steps)
        try:
            action = self._policy(Turn(self._messages, self._tools, index))
        except Exception as error:  # the reference solution is the author's code
            self.record.calls.append(CallRecord(method="reference", raised=self._bench.author.raised(error)))
            self.over = True
            return
        self._messages.append(Message(action))
        call = await self._measured(self.instance.step(action))
        self._add(call)
        self.record.ended = call.terminated or call.truncated
        self.over = self.over or self.record.ended or index + 1 >= MAX_TURNS

    async def run_program(self) -> None:
        """The whole episode of an agent program, closed."""
        made = await self._measured(self.instance.make())
        self._add(made)
        if not self.over:
            await ProgramPlayer(self._bench, self.record, self._task, self.instance).play(self._made_policy())
        await self.end()

    async def end(self) -> None:
        """Closes the instance."""
        if self.instance.env is not None:
            self.record.calls.append(await self._measured(self.instance.close()))
        self.instance.retire()

    def _add(self, call: CallRecord) -> None:
        self.record.calls.append(call)
        self._messages += [Message(message) for message in call.observation or []]
        broken = any(breach.code in ("result-shape", "message-form", "not-json") for breach in call.breaches)
        self.over = self.over or call.raised is not None or broken

    async def _measured(self, calling: object) -> CallRecord:
        bench = self._bench
        bench.task_id, bench.policy = self._task.id, self.record.policy
        call: CallRecord = await calling  # type: ignore[misc]
        if call.hung:
            self.record.calls.append(call)
            bench.emit(self.record)
            bench.exits.leave(HUNG_STATUS)
        return call

    def _made_policy(self) -> Policy:
        if self.record.policy == REFERENCE:
            env = self.instance.env
            assert env is not None
            assert self._bench.solve is not None
            return ReferencePolicy(bound(self._bench.solve, getattr(env, "unwrapped", env), self._task))
        return scripted(self.record.policy, self._task.id)


async def play(
    bench: Bench, kind: Kind, task: Task, policy: str, instance: Instance | None = None, *, close: bool = True
) -> Player:
    """A whole episode; its record is written to the pipe."""
    player = Player(bench, kind, task, policy, instance)
    if bench.program is not None:
        await player.run_program()
        bench.emit(player.record)
        return player
    await player.begin()
    while not player.over:
        await player.turn()
    if close:
        await player.end()
    bench.emit(player.record)
    return player
