"""Engines that share their GPUs with the trainer: asleep while it steps, awake again with the weights that it made."""

from __future__ import annotations

import time
from typing import Protocol

from agentrl.train.ports import Stepper, StepResult
from agentrl.types import Batch


class Sleepers(Protocol):
    """Engines that can give up their memory. The next swap wakes them."""

    async def sleep(self) -> None:
        """Returns when what was in flight is done and all engines are asleep. Raises SwapError when none took it."""
        ...


class ColocatedTrainer:
    """The loop's trainer where `engine.sleep_level` is set.

    A step without a batch never gets here: the engines stay awake then, and the swap wakes nobody.
    """

    def __init__(self, trainer: Stepper, engines: Sleepers) -> None:
        self._trainer = trainer
        self._engines = engines

    async def step(self, batch: Batch) -> StepResult:
        """`metrics["engines_sleep_s"]` is what it took the slowest engine to fall asleep."""
        started = time.perf_counter()
        await self._engines.sleep()
        slept_s = time.perf_counter() - started
        result = await self._trainer.step(batch)
        return StepResult({**result.metrics, "engines_sleep_s": slept_s}, result.untrained_sessions)
