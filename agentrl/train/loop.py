"""The control loop. One screen; every stage is a verb, every policy lives in its own file.

Rollouts go on while the trainer steps: the producer keeps (K + 1) steps' worth of groups under way, and the swap
reaches the engines while their requests are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentrl.observe.recorder import Recorder
from agentrl.observe.timing import PhaseTimer
from agentrl.train.batch import STEP_SKIPPED, AdvantageEstimator, prepare_batch
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.ports import Trainer
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import WeightPublisher
from agentrl.train.report import describe_step


@dataclass
class TrainLoop:
    """Task ─► episodes ─► scored groups ─► batch ─► step ─► weights ─► engines, until `config.steps`."""

    config: LoopConfig
    staleness: StalenessConfig
    algorithm: AlgorithmConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    directory: Path  # of the checkpoints
    producer: GroupProducer
    evaluator: Evaluator
    trainer: Trainer
    publisher: WeightPublisher
    estimate: AdvantageEstimator
    recorder: Recorder

    async def run(self) -> None:
        if self.evaluation.at_start and self.evaluation.tasks:
            self.recorder.evaluated(await self.evaluator.run(version=0))
        try:
            async with self.producer:
                for version in range(self.config.steps):
                    await self._step(version)
        finally:
            self.recorder.dropped_groups = self.producer.dropped_groups
        await self._export(self.config.steps)
        if self.evaluation.at_end and self.evaluation.tasks:
            self.recorder.evaluated(await self.evaluator.run(version=self.config.steps))

    async def _step(self, version: int) -> None:
        """Trains from `version`, publishes `version + 1`, then closes the books of what was trained."""
        timer = PhaseTimer()
        with timer.phase("wait"):
            groups = await self.producer.take(self.config.groups_per_step)
        with timer.phase("batch"):
            prepared = prepare_batch(
                groups,
                version=version,
                staleness=self.staleness,
                algorithm=self.algorithm,
                estimate=self.estimate,
            )
        with timer.phase("train"):
            metrics = await self.trainer.step(prepared.batch) if prepared.batch.rows else {"skipped": 1.0}
            if metrics.get("skipped"):
                prepared.without_gradient(STEP_SKIPPED)
        with timer.phase("publish"):
            swap_seconds = await self.publisher.publish(version + 1)
        self.producer.version = version + 1
        self.producer.settle(prepared.settlements, step=version + 1)
        if self.checkpoint.every and (version + 1) % self.checkpoint.every == 0 and version + 1 < self.config.steps:
            with timer.phase("export"):
                await self._export(version + 1)
        self.recorder.stepped(
            describe_step(
                groups,
                prepared,
                metrics=metrics,
                phases=timer.seconds,
                swap=swap_seconds,
                producer=self.producer,
                success_reward=self.evaluation.success_reward,
            )
        )

    async def _export(self, version: int) -> None:
        await self.trainer.export(self.directory / f"v{version}", version)
