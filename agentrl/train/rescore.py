"""Scores stored trajectories again, with other rewards, beside the ones that they have. Nobody asks the policy."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Sequence
from statistics import StatisticsError, correlation, fmean

from msgspec import Struct

from agentrl.reward.compose import Reward
from agentrl.reward.config import RewardConfig
from agentrl.reward.scorer import Scorer
from agentrl.store.base import TrajectoryStore
from agentrl.train.stored import ended_by_policy, episode_of
from agentrl.types import Mode, Trajectory

CHUNK = 256
"""Trajectories in memory at a time."""


class Rescored(Struct, frozen=True, kw_only=True):
    """What came of it. Means and correlation are over the trajectories that have both rewards."""

    scored: int
    without: int  # that got no reward this time
    skipped: int  # that had one under this label already, or that a failure ended
    old_mean: float | None
    new_mean: float | None
    correlation: float | None  # Pearson's; None where either does not vary


class Rescorer:
    """Writes `label`, and `label.part` for each part, among a trajectory's components. Its reward stays as it is."""

    def __init__(
        self, store: TrajectoryStore, config: RewardConfig, *, label: str, progress: Callable[[], None] = lambda: None
    ) -> None:
        self._store = store
        self._config = config.outside_of_training
        self._label = label
        self._progress = progress
        self._pairs: list[tuple[float, float]] = []
        self._counts = {"scored": 0, "without": 0, "skipped": 0}

    async def run(self, *, mode: Mode | None = None, again: bool = False) -> Rescored:
        """Groups are scored together where a part compares siblings. `again`: also those that have the label.

        Raises ConfigError, and RewardError when the configuration says that failures end it.
        """
        scorer = Scorer(self._config)
        try:
            await scorer.check()
            for group in self._groups(mode, again):
                await self._score(scorer, group)
        finally:
            await scorer.close()
        return Rescored(**self._counts, **_compared(self._pairs))  # type: ignore[arg-type]

    def _groups(self, mode: Mode | None, again: bool) -> Iterator[list[Trajectory]]:
        """Chunks of trajectories; whole groups, where a part needs them."""
        together = any(part.scope == "group" for part in self._config.parts)
        if together:
            for record in self._store.groups():
                yield list(self._wanted(self._store.iterate(mode=mode, group_id=record.group_id), again))
            return
        wanted = self._wanted(self._store.iterate(mode=mode), again)
        while chunk := list(itertools.islice(wanted, CHUNK)):
            yield chunk

    def _wanted(self, trajectories: Iterator[Trajectory], again: bool) -> Iterator[Trajectory]:
        for trajectory in trajectories:
            done = self._label in trajectory.components and not again
            if done or not ended_by_policy(trajectory):
                self._counts["skipped"] += 1
                self._progress()
                continue
            yield trajectory

    async def _score(self, scorer: Scorer, trajectories: Sequence[Trajectory]) -> None:
        if not trajectories:
            return
        episodes = [episode_of(trajectory) for trajectory in trajectories]
        tokens = {one.session_id: sum(len(call.token_ids) for call in one.calls) for one in trajectories}
        group_id = str(trajectories[0].metadata.get("group_id", ""))
        rewards = await scorer.score(episodes, group_id=group_id, tokens=tokens)
        await asyncio.to_thread(self._write, trajectories, rewards)

    def _write(self, trajectories: Sequence[Trajectory], rewards: dict[str, Reward]) -> None:
        for trajectory in trajectories:
            reward = rewards[trajectory.session_id]
            parts = {f"{self._label}.{name}": value for name, value in reward.components.items()}
            kept = {**trajectory.components, self._label: reward.value, **parts}
            self._store.set_reward(trajectory.session_id, trajectory.reward, kept)
            self._counts["scored" if reward.value is not None else "without"] += 1
            if reward.value is not None and trajectory.reward is not None:
                self._pairs.append((trajectory.reward, reward.value))
            self._progress()


def _compared(pairs: Sequence[tuple[float, float]]) -> dict[str, float | None]:
    if not pairs:
        return {"old_mean": None, "new_mean": None, "correlation": None}
    old, new = (list(column) for column in zip(*pairs, strict=True))
    try:
        linked = correlation(old, new)
    except StatisticsError:  # one of them does not vary, or there is one pair only
        linked = None
    return {"old_mean": fmean(old), "new_mean": fmean(new), "correlation": linked}
