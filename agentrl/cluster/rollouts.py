"""Rollout workers as the loop's port: groups go round those that live, and one whose worker died is played again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentrl.cluster.handles import cause, died, remote
from agentrl.errors import RunError
from agentrl.types import Episode, Group, Mode, StopReason, Task

logger = logging.getLogger(__name__)

CANCEL_TIMEOUT_S = 10.0
DIED = "died"

EndGroup = Callable[[str], Awaitable[list[str]]]
"""Finishes a group's open sessions; the ids of those that had calls."""


class Worker:
    """A place for an actor. `actor` is None while there is none that lives."""

    def __init__(self, name: str, actor: Any = None) -> None:
        self.name = name
        self.actor = actor


class RayRollouts:
    """Rollout workers as one `agentrl.train.ports.Rollouts`.

    What the attempts of a dead worker left behind is finished before their group is played again, and is in the
    group's `retried`, so that each of its sampled tokens is counted and none is trained.
    """

    def __init__(self, workers: Sequence[Worker], *, end_group: EndGroup) -> None:
        self.report: Callable[[str, str], None] = lambda name, what: None
        self._workers = list(workers)
        self._end_group = end_group
        self._turn = 0
        self._changed = asyncio.Condition()

    async def came(self, name: str, actor: Any) -> None:
        """A worker has another actor; None: the one that it had is gone."""
        next(worker for worker in self._workers if worker.name == name).actor = actor
        async with self._changed:
            self._changed.notify_all()

    async def run_group(
        self,
        group_id: str,
        task: Task,
        *,
        size: int,
        version: int,
        mode: Mode,
        have: Mapping[int, Episode] | None = None,
    ) -> Group:
        """Raises RunError for a fault of the rollout itself."""
        broken: list[Episode] = []
        while True:
            worker, actor = await self._next()
            call = actor.run_group.remote(group_id, task, size=size, version=version, mode=mode, have=dict(have or {}))
            try:
                group: Group = await remote(call)
            except asyncio.CancelledError:
                await self._cancel(call)
                raise
            except Exception as error:
                if not died(error):
                    raise RunError(f"a rollout worker failed on group {group_id}: {cause(error)}") from error
                logger.error("%s died with group %s, which is played again: %s", worker.name, group_id, cause(error))
                await self._lost(worker, actor)
                broken += [_broken(session_id, task) for session_id in await self._end_group(group_id)]
            else:
                return msgspec.structs.replace(group, retried=[*broken, *group.retried])

    async def _next(self) -> tuple[Worker, Any]:
        """The next living worker's turn. Waits while there is none: the run ends when none comes back."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(worker.actor is not None for worker in self._workers))
        while True:
            worker = self._workers[self._turn % len(self._workers)]
            self._turn += 1
            if worker.actor is not None:
                return worker, worker.actor

    async def _lost(self, worker: Worker, actor: Any) -> None:
        if worker.actor is actor:
            await self.came(worker.name, None)
            self.report(worker.name, DIED)

    async def _cancel(self, call: Any) -> None:
        """Ends the group on its worker and waits, in bounds, until its episodes cleaned up."""
        import ray

        ray.cancel(call)
        with contextlib.suppress(Exception):  # it was cancelled: whatever it says now, nobody needs it
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await remote(call)


def _broken(session_id: str, task: Task) -> Episode:
    return Episode(
        session_id=session_id,
        task=task,
        stop_reason=StopReason.CANCELLED,
        reward=None,
        error="its rollout worker died",
    )
