"""How good a version is, as far as training shows it: what retention ranks checkpoints by."""

from __future__ import annotations

from collections.abc import Sequence


class RunningScores:
    """Means over the trajectories of the steps since the last `take`, so that versions saved apart compare.

    A single step's mean swings too much to rank by.
    """

    def __init__(self, success_reward: float) -> None:
        self._success_reward = success_reward
        self._rewards: list[float] = []

    def add(self, rewards: Sequence[float | None]) -> None:
        """Of the trajectories of one step. A missing one is left out."""
        self._rewards += [reward for reward in rewards if reward is not None]

    def take(self) -> dict[str, float]:
        """`reward` and `success`, and begin anew; {} when there was no reward."""
        rewards, self._rewards = self._rewards, []
        if not rewards:
            return {}
        successes = sum(reward >= self._success_reward for reward in rewards)
        return {"reward": sum(rewards) / len(rewards), "success": successes / len(rewards)}
