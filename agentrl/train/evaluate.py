"""Success on held-out tasks, through the same gateway, renderer and parser as training (invariant 12)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from agentrl.errors import RunError, first_error
from agentrl.observe.records import EvalRecord
from agentrl.train.config import EvaluationConfig
from agentrl.train.ports import Rollouts, Scorer
from agentrl.types import Episode, Task


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

    async def run(self, version: int) -> EvalRecord:
        """Raises RunError when no episode got a reward, or the time limit passed."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                return self._summarise(version, await self._all(version))
        except TimeoutError:
            raise RunError(
                f"the evaluation of {len(self._tasks)} tasks did not end within evaluation.timeout_s = "
                f"{self._config.timeout_s:g} s; raise it or evaluate fewer tasks"
            ) from None
        except BaseExceptionGroup as errors:
            raise first_error(errors) from errors

    async def _all(self, version: int) -> list[Episode]:
        """One failing rollout cancels the others."""
        done = itertools.count(1)

        async def one(index: int, task: Task) -> Episode:
            group_id = f"eval-v{version}-{index:04d}"
            group = await self._rollouts.run_group(group_id, task, size=1, version=version, mode="eval")
            await self._scorer.score(group)
            self._progress(f"evaluating version {version}", next(done), len(self._tasks))
            return group.episodes[0]

        async with asyncio.TaskGroup() as running:
            episodes = [running.create_task(one(index, task)) for index, task in enumerate(self._tasks)]
        return [episode.result() for episode in episodes]

    def _summarise(self, version: int, episodes: Sequence[Episode]) -> EvalRecord:
        rewards = [episode.reward for episode in episodes if episode.reward is not None]
        if not rewards:
            errors = [episode.error for episode in episodes if episode.error]
            raise RunError(
                f"none of {len(episodes)} evaluation episodes got a reward"
                + (f"; the first error: {errors[0]}" if errors else "")
                + ". The tracebacks are in logs/rollout.log; run `agentrl env play` to see one episode"
            )
        successes = sum(reward >= self._config.success_reward for reward in rewards)
        return EvalRecord(
            version=version,
            tasks=len(episodes),
            missing=len(episodes) - len(rewards),
            success=successes / len(rewards),
            reward=sum(rewards) / len(rewards),
        )
