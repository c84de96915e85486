"""Plays the episodes that are missing, and keeps each as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agentrl.errors import RunError, first_error
from agentrl.evaluate.records import EpisodeResult
from agentrl.types import Episode, Group, Mode, StopReason, Task

MAX_POLICY_ERRORS = 16
"""Episodes in a row that may fail for the policy's server before the evaluation stops: it is down."""


class Rollouts(Protocol):
    async def run_group(
        self, group_id: str, task: Task, *, size: int | None = None, version: int, mode: Mode = "train"
    ) -> Group: ...


async def unchanged(group: Group) -> None:
    """The environment's rewards are the rewards."""


class EvaluationRunner:
    """`score` gives a task's episodes the rewards of others than the environment; `keep`, in a thread, makes them
    durable; then `ended`, on the event loop, hears of them."""

    def __init__(
        self,
        rollouts: Rollouts,
        *,
        concurrency: int,
        keep: Callable[[Sequence[EpisodeResult]], None],
        ended: Callable[[Sequence[EpisodeResult]], None],
        score: Callable[[Group], Awaitable[None]] = unchanged,
    ) -> None:
        self._rollouts = rollouts
        self._slots = asyncio.Semaphore(concurrency)
        self._keep = keep
        self._ended = ended
        self._score = score
        self._failed_in_a_row = 0
        self._writing = asyncio.Lock()

    async def run(self, left: Sequence[tuple[Task, list[int]]]) -> None:
        """Raises RunError when the policy's server is down, and whatever a rollout or `score` fails with."""
        try:
            async with asyncio.TaskGroup() as group:
                for task, samples in left:
                    # A slot is taken here, so that no more tasks are under way than can have an episode running.
                    await self._slots.acquire()
                    group.create_task(self._one(task, samples), name=f"evaluating {task.id}")
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _one(self, task: Task, samples: list[int]) -> None:
        try:
            group = await self._rollouts.run_group(task.id, task, size=len(samples), version=0, mode="eval")
        finally:
            self._slots.release()
        await self._score(group)
        results = [_result(task, sample, episode) for sample, episode in zip(samples, group.attempts, strict=True)]
        async with self._writing:
            await asyncio.to_thread(self._keep, results)
        self._ended(results)
        for result in results:
            self._stop_when_down(result)

    def _stop_when_down(self, result: EpisodeResult) -> None:
        if result.stop_reason != StopReason.POLICY_ERROR:
            self._failed_in_a_row = 0
            return
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= MAX_POLICY_ERRORS:
            raise RunError(
                f"{self._failed_in_a_row} episodes in a row failed for the policy's server, the last one with: "
                f"{result.error}; mend it and run the same command again, which goes on from here"
            )


def _result(task: Task, sample: int, episode: Episode) -> EpisodeResult:
    return EpisodeResult(
        task_id=task.id,
        sample=sample,
        session_id=episode.session_id,
        reward=episode.reward,
        stop_reason=episode.stop_reason,
        turns=episode.turns,
        error=episode.error,
    )
