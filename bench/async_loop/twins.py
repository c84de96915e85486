"""A trainer that takes a set time, and a reward that is the environment's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agentrl.digest import digest_of_file
from agentrl.train.ports import StepResult
from agentrl.types import Batch, Group, WeightGroup


class TimedTrainer:
    """A step takes `step_s`; a version is one small file."""

    life = 0

    def __init__(self, step_s: float, folder: Path) -> None:
        self._step_s = step_s
        self._folder = folder

    async def step(self, batch: Batch) -> StepResult:
        await asyncio.sleep(self._step_s)
        return StepResult({"loss": 0.0})

    async def num_weight_groups(self, *, changed_only: bool) -> int:
        return 1

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        path = self._folder / f"v{version}"
        path.write_bytes(b"weights")
        return WeightGroup(
            version=version, index=0, count=1, path=str(path), digest=digest_of_file(path), names=("w",), num_bytes=7
        )

    async def discard_weight_group(self, group: WeightGroup) -> None:
        Path(group.path).unlink()

    async def send_weights(self, *, changed_only: bool) -> dict[str, float]:
        raise NotImplementedError("its weights go by files")

    async def export(self, directory: Path, version: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    async def save(self, directory: Path, version: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)

    async def load(self, directory: Path) -> int:
        raise NotImplementedError("a benchmark is not resumed")


class NoScorer:
    def stats(self) -> dict[str, dict[str, float]]:
        return {}

    async def score(self, group: Group, *, useful: Callable[[], bool] = lambda: True) -> None:
        return None
