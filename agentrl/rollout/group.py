"""The n episodes of one task that share a baseline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentrl.types import Episode, Group, Task


async def run_group(
    group_id: str, task: Task, *, size: int, version: int, play: Callable[[int], Awaitable[Episode]]
) -> Group:
    """All `size` episodes at once; `play(index)` runs one. Whole when the last one is done, failed ones included.

    An exception of `play` is a fault of the rollout itself: it ends the group and is raised.
    """

    async def one(index: int) -> Episode:
        return await play(index)

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(index), name=f"{group_id}[{index}]") for index in range(size)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    episodes = [episode.result() for episode in running]
    return Group(group_id=group_id, task=task, episodes=episodes, admitted_at_version=version)
