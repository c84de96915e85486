"""The loop of a run that learns from data. One screen, whatever the kind: the trainer knows what is minimised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from agentrl.observe.supervised import EvalRecord, StepRecord, SupervisedRecorder
from agentrl.train.saver import CheckpointSaver
from agentrl.train.supervised.batches import batches, steps_of
from agentrl.train.supervised.config import EpochsConfig
from agentrl.train.supervised.dataset import Dataset
from agentrl.train.supervised.items import Item
from agentrl.types import Batch, TrainRow

REFERENCE_ITEMS = 256  # pairs whose reference logprobs are asked for at one time


class SupervisedTrainer(Protocol):
    """Every rank, as one. Raises TrainerError."""

    async def step(self, batch: Batch) -> dict[str, float]: ...

    async def evaluate(self, batch: Batch) -> dict[str, float]: ...

    async def reference(self, rows: list[TrainRow]) -> list[list[float]]:
        """Logprobs of each row's trained tokens under the reference. Only where `asks_reference`."""
        ...


@dataclass
class SupervisedLoop:
    """Data ─► batches ─► steps ─► an exported model."""

    config: EpochsConfig
    saver: CheckpointSaver
    dataset: Dataset
    trainer: SupervisedTrainer
    recorder: SupervisedRecorder
    seed: int
    asks_reference: bool  # whether rows carry the logprobs of a reference model

    @property
    def steps(self) -> int:
        config = self.config
        items = len(self.dataset.train)
        return steps_of(items, batch_size=config.batch_size, epochs=config.epochs, at_most=config.steps)

    async def run(self) -> None:
        if self.asks_reference:
            await self._note_reference()
        await self._evaluate(0)
        size, epochs = self.config.batch_size, self.config.epochs
        ahead = batches(self.dataset.train, batch_size=size, epochs=epochs, seed=self.seed)
        for version, (epoch, items) in enumerate(islice(ahead, self.steps), start=1):
            metrics = await self.trainer.step(batch_of(items, version - 1))
            self.recorder.stepped(
                StepRecord(
                    step=version,
                    epoch=epoch,
                    loss=metrics.pop("loss"),
                    trained_tokens=int(metrics.pop("trained_tokens")),
                    row_tokens=int(metrics.pop("row_tokens")),
                    trainer=metrics,
                )
            )
            if version < self.steps:
                await self._between_steps(version)
        await self._save(self.steps)
        await self._evaluate(self.steps)

    async def _between_steps(self, version: int) -> None:
        if self.saver.due(version):
            await self._save(version)
        if self.config.eval_every and version % self.config.eval_every == 0:
            await self._evaluate(version)

    async def _save(self, version: int) -> None:
        """The place in the data follows from the version: batches are drawn alike from the seed."""
        await self.saver.save(version, scores={}, run={"version": version})

    async def _evaluate(self, version: int) -> None:
        if held_out := self.dataset.held_out:
            metrics = await self.trainer.evaluate(batch_of(held_out, version))
            loss = metrics.pop("loss")
            self.recorder.evaluated(EvalRecord(version=version, items=len(held_out), loss=loss, trainer=metrics))

    async def _note_reference(self) -> None:
        """Once, for all rows: the reference never changes."""
        items = [*self.dataset.train, *self.dataset.held_out]
        for start in range(0, len(items), REFERENCE_ITEMS):
            rows = batch_of(items[start : start + REFERENCE_ITEMS], 0).rows
            for row, logprobs in zip(rows, await self.trainer.reference(rows), strict=True):
                known = iter(logprobs)
                row.logprobs = [next(known) if trained else 0.0 for trained in row.loss_mask]


def batch_of(items: Sequence[Item], version: int) -> Batch:
    return Batch(version=version, rows=[row for item in items for row in item.rows])
