"""Success on held-out tasks, through the same gateway, renderer and parser as training (invariant 12)."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from agentrl.errors import RunError, first_error
from agentrl.observe.records import EvalRecord
from agentrl.train.config import EvaluationConfig
from agentrl.train.ports import Rollouts, Scorer
from agentrl.types import Group, Task

Failure = Literal["timeout", "no_reward", "failed", "engines", "busy"]
"""Why there is no result: it took too long; no episode got a reward; something else failed; its engines did not take
the version; the one before was not done."""


class EvaluationError(RunError):
    """There is no result, and `reason` names why."""

    def __init__(self, message: str, reason: Failure) -> None:
        super().__init__(message)
        self.reason: Failure = reason


class Evaluated(NamedTuple):
    """A result, and the groups of one episode each that it is made of."""

    record: EvalRecord
    groups: list[Group]
    started_at: float  # unix seconds


class Evaluator:
    """Runs every held-out task once. The caller sees to it that no swap falls into an evaluation.

    `progress` hears what is going on, how many episodes are done, and of how many.
    """

    def __init__(
        self,
        *,
        tasks: Sequence[Task],
        rollouts: Rollouts,
        scorer: Scorer,
        config: EvaluationConfig,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self._tasks = tasks
        self._rollouts = rollouts
        self._scorer = scorer
        self._config = config
        self._progress = progress

    async def run(self, version: int) -> Evaluated:
        """Raises EvaluationError when no episode got a reward, or the time limit passed; else what a rollout or a
        reward raised."""
        started_at, started = time.time(), time.perf_counter()
        try:
            async with asyncio.timeout(self._config.timeout_s):
                groups = await self._all(version)
        except TimeoutError:
            raise EvaluationError(
                f"the evaluation of {len(self._tasks)} tasks did not end within evaluation.timeout_s = "
                f"{self._config.timeout_s:g} s; raise it or evaluate fewer tasks",
                "timeout",
            ) from None
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors
        record = self._summarise(version, groups)
        record.seconds = time.perf_counter() - started
        return Evaluated(record, groups, started_at)

    async def _all(self, version: int) -> list[Group]:
        """One failing rollout cancels the others."""
        done = itertools.count(1)

        async def one(index: int, task: Task) -> Group:
            group_id = f"eval-v{version}-{index:04d}"
            admitted_at = time.time()
            group = await self._rollouts.run_group(group_id, task, size=1, version=version, mode="eval")
            group.admitted_at, group.played_at = admitted_at, time.time()
            await self._scorer.score(group)
            group.scored_at = time.time()
            self._progress(f"evaluating version {version}", next(done), len(self._tasks))
            return group

        async with asyncio.TaskGroup() as running:
            groups = [running.create_task(one(index, task)) for index, task in enumerate(self._tasks)]
        return [group.result() for group in groups]

    def _summarise(self, version: int, groups: Sequence[Group]) -> EvalRecord:
        episodes = [group.episodes[0] for group in groups]
        rewards = [episode.reward for episode in episodes if episode.reward is not None]
        if not rewards:
            errors = [episode.error for episode in episodes if episode.error]
            raise EvaluationError(
                f"none of {len(episodes)} evaluation episodes got a reward"
                + (f"; the first error: {errors[0]}" if errors else "")
                + ". The tracebacks are in logs/rollout.log; run `agentrl env play` to see one episode",
                "no_reward",
            )
        successes = sum(reward >= self._config.success_reward for reward in rewards)
        return EvalRecord(
            version=version,
            tasks=len(episodes),
            missing=len(episodes) - len(rewards),
            success=successes / len(rewards),
            reward=sum(rewards) / len(rewards),
        )
