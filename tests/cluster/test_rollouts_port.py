"""Rollout workers as the loop's port: a dead worker costs its groups a second try and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from ray.exceptions import RayActorError

from agentrl.cluster.rollouts import RayRollouts, Worker
from agentrl.errors import RunError
from agentrl.types import Episode, Group, StopReason, Task

TASK = Task(id="t", env_id="e")


class Actor:
    """What Ray makes of a worker: `run_group.remote(...)` gives something to await."""

    def __init__(self, play: Callable[[str], Awaitable[Group]]) -> None:
        self.played: list[str] = []
        self._play = play
        self.run_group = self

    def remote(self, group_id: str, task: Task, **_: Any) -> Awaitable[Group]:
        self.played.append(group_id)
        return self._play(group_id)


async def plays(group_id: str) -> Group:
    return Group(group_id=group_id, task=TASK)


async def dies(group_id: str) -> Group:
    raise RayActorError()


class Ended:
    """The gateway's side: what it was asked to end, and the session that it found there."""

    def __init__(self) -> None:
        self.groups: list[str] = []

    async def __call__(self, group_id: str) -> list[str]:
        self.groups.append(group_id)
        return [f"session of {group_id}"]


async def run(rollouts: RayRollouts, group_id: str) -> Group:
    return await rollouts.run_group(group_id, TASK, size=2, version=0, mode="train")


async def test_groups_go_round_the_workers():
    workers = [Actor(plays), Actor(plays)]
    rollouts = RayRollouts([Worker("a", workers[0]), Worker("b", workers[1])], end_group=Ended())
    for group_id in ("g0", "g1", "g2"):
        assert (await run(rollouts, group_id)).group_id == group_id
    assert [worker.played for worker in workers] == [["g0", "g2"], ["g1"]]


async def test_a_fault_of_the_rollout_itself_ends_the_run():
    async def fails(group_id: str) -> Group:
        raise OSError("no space left")

    rollouts = RayRollouts([Worker("a", Actor(fails))], end_group=Ended())
    with pytest.raises(RunError, match="a rollout worker failed on group g1: OSError: no space left"):
        await run(rollouts, "g1")


async def test_a_group_of_a_dead_worker_is_played_by_another_and_what_was_begun_is_counted_as_retried():
    ended, reported = Ended(), []
    rollouts = RayRollouts([Worker("a", Actor(dies)), Worker("b", Actor(plays))], end_group=ended)
    rollouts.report = lambda name, what: reported.append((name, what))
    group = await run(rollouts, "g0")
    assert ended.groups == ["g0"]
    assert [(e.session_id, e.stop_reason, e.reward) for e in group.retried] == [
        ("session of g0", StopReason.CANCELLED, None)
    ]
    assert reported == [("a", "died")]


async def test_what_the_other_worker_retried_is_counted_too():
    async def retries(group_id: str) -> Group:
        retried = [Episode(session_id="s1", task=TASK, stop_reason=StopReason.ENV_ERROR, reward=None)]
        return Group(group_id=group_id, task=TASK, retried=retried)

    rollouts = RayRollouts([Worker("a", Actor(dies)), Worker("b", Actor(retries))], end_group=Ended())
    group = await run(rollouts, "g0")
    assert [episode.session_id for episode in group.retried] == ["session of g0", "s1"]


async def test_with_no_worker_left_a_group_waits_for_the_one_that_comes_back():
    rollouts, again = RayRollouts([Worker("a", Actor(dies))], end_group=Ended()), Actor(plays)
    died = asyncio.Event()
    rollouts.report = lambda name, what: died.set()
    running = asyncio.create_task(run(rollouts, "g0"))
    await died.wait()
    await rollouts.came("a", again)
    assert (await running).group_id == "g0"
    assert again.played == ["g0"]


async def test_many_groups_of_one_dead_worker_report_it_once():
    reported: list[str] = []
    rollouts = RayRollouts([Worker("a", Actor(dies)), Worker("b", Actor(plays))], end_group=Ended())
    rollouts.report = lambda name, what: reported.append(name)
    both = Actor(dies)
    await rollouts.came("a", both)
    await asyncio.gather(*(run(rollouts, f"g{number}") for number in range(6)))
    assert reported == ["a"]
