"""Brings one version of the trainer's weights into every engine, one shared-memory file at a time."""

from __future__ import annotations

from pathlib import Path

from agentrl.train.ports import Engines, Trainer


class WeightPublisher:
    """Streams weight groups, so that peak memory is the model plus one group."""

    def __init__(self, *, trainer: Trainer, engines: Engines) -> None:
        self._trainer = trainer
        self._engines = engines

    async def publish(self, version: int) -> dict[str, float]:
        """Returns the slowest engine's seconds per part. Raises SwapError when no engine took the version."""
        async with self._engines.swap(version) as swap:
            for index in range(await self._trainer.num_weight_groups()):
                group = await self._trainer.write_weight_group(version, index)
                try:
                    await swap.load(group)
                finally:
                    Path(group.path).unlink(missing_ok=True)
        return swap.seconds
