"""Success on held-out tasks, through the same gateway, renderer and parser as training (invariant 12)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentrl.errors import RunError
from agentrl.observe.records import EvalRecord
from agentrl.train.config import EvaluationConfig
from agentrl.train.ports import Rollouts, Scorer
from agentrl.types import Episode, Task


class Evaluator:
    """Runs every held-out task once. The caller sees to it that no swap falls into an evaluation."""

    def __init__(self, *, tasks: Sequence[Task], rollouts: Rollouts, scorer: Scorer, config: EvaluationConfig) -> None:
        self._tasks = tasks
        self._rollouts = rollouts
        self._scorer = scorer
        self._config = config

    async def run(self, version: int) -> EvalRecord:
        """Raises RunError when no episode got a reward, or the time limit passed."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                episodes = await asyncio.gather(*(self._one(i, task, version) for i, task in enumerate(self._tasks)))
        except TimeoutError:
            raise RunError(
                f"the evaluation of {len(self._tasks)} tasks did not end within evaluation.timeout_s = "
                f"{self._config.timeout_s:g} s; raise it or evaluate fewer tasks"
            ) from None
        return self._summarise(version, episodes)

    async def _one(self, index: int, task: Task, version: int) -> Episode:
        group_id = f"eval-v{version}-{index:04d}"
        group = await self._rollouts.run_group(group_id, task, size=1, version=version, mode="eval")
        await self._scorer.score(group)
        return group.episodes[0]

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
