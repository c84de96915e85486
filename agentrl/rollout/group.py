"""The n episodes of one task that share a baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from agentrl.rollout.completeness import Attendance, Completeness
from agentrl.types import Episode, Group, Task


async def run_group(
    group_id: str,
    task: Task,
    *,
    size: int,
    version: int,
    play: Callable[[int], Awaitable[Episode]],
    have: Mapping[int, Episode] | None = None,
    completeness: Completeness | None = None,
) -> Group:
    """All `size` episodes at once; `play(index)` runs one, unless we `have` it. One with several roles has a place for
    each of them.

    Whole when the last one is done, failed ones included, unless `completeness` says otherwise. An exception of `play`
    is a fault of the rollout itself: it ends the group and is raised.
    """
    attempts = _Attempts(group_id, play, Attendance(completeness or Completeness()))
    try:
        async with asyncio.TaskGroup() as tasks:
            await attempts.all_of(size, have or {}, tasks)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return Group(
        group_id=group_id,
        task=task,
        episodes=[episode for _, attempt in sorted(attempts.done.items()) for episode in _of_every_role(attempt)],
        admitted_at_version=version,
        retried=attempts.replaced,
        cut=sorted(attempts.cut),
    )


class _Attempts:
    def __init__(self, group_id: str, play: Callable[[int], Awaitable[Episode]], attendance: Attendance) -> None:
        self.done: dict[int, Episode] = {}
        self.replaced: list[Episode] = []
        self.cut: list[int] = []
        self._group_id = group_id
        self._play = play
        self._attendance = attendance
        self._running: dict[asyncio.Task[Episode], int] = {}

    async def all_of(self, size: int, have: Mapping[int, Episode], tasks: asyncio.TaskGroup) -> None:
        clock = asyncio.get_running_loop().time
        for index in range(size):
            if index in have:
                self._ended(index, have[index], tasks, clock())
            else:
                self._start(index, tasks)
        while self._running:
            late_at = self._attendance.late_at
            patience = None if late_at is None else max(0.0, late_at - clock())
            ended, _ = await asyncio.wait(self._running, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                self._ended(self._running.pop(task), task.result(), tasks, clock())
            if not ended:
                self._cut_the_rest()

    def _start(self, index: int, tasks: asyncio.TaskGroup) -> None:
        async def one() -> Episode:
            return await self._play(index)

        self._running[tasks.create_task(one(), name=f"{self._group_id}[{index}]")] = index

    def _ended(self, index: int, episode: Episode, tasks: asyncio.TaskGroup, now: float) -> None:
        if self._attendance.ended(well=episode.stop_reason.by_policy, now=now):
            self.replaced.append(msgspec.structs.replace(episode, messages=[]))
            self._start(index, tasks)
        else:
            self.done[index] = episode

    def _cut_the_rest(self) -> None:
        """The task group waits until they have cleaned up."""
        for task, index in self._running.items():
            task.cancel()
            self.cut.append(index)
        self._running.clear()


def _of_every_role(episode: Episode) -> list[Episode]:
    others, episode.others = episode.others, []
    return [episode, *others]
