"""The control loop. One screen; every stage is a verb, every policy lives in its own file.

Rollouts go on while the trainer steps: the producer keeps (K + 1) steps' worth of groups under way, and the swap
reaches the engines while their requests are in flight.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from agentrl.errors import Interrupted
from agentrl.observe.recorder import Recorder
from agentrl.observe.records import StepRecord
from agentrl.observe.timing import PhaseTimer
from agentrl.train.advantage import AdvantageEstimator
from agentrl.train.batch import prepare_batch
from agentrl.train.batch_log import BatchLog
from agentrl.train.config import AlgorithmConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluations import Evaluations
from agentrl.train.ports import Stepper
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import Publisher
from agentrl.train.report import describe_step
from agentrl.train.saver import CheckpointSaver
from agentrl.train.scores import RunningScores
from agentrl.train.step import train_on
from agentrl.train.stopping import Stopping
from agentrl.train.tracing import StepTracer

RECORD = "record"
"""In a checkpoint's `run.json`: what the step that made it looked like, until `metrics.jsonl` has it."""


@dataclass
class TrainLoop:
    """Task ─► episodes ─► scored groups ─► batch ─► step ─► weights ─► engines, until `config.steps`."""

    config: LoopConfig
    staleness: StalenessConfig
    algorithm: AlgorithmConfig
    evaluation: EvaluationConfig
    log: BatchLog
    saver: CheckpointSaver
    producer: GroupProducer
    evaluations: Evaluations
    trainer: Stepper
    publisher: Publisher
    estimate: AdvantageEstimator
    recorder: Recorder
    stopping: Stopping = field(default_factory=Stopping)
    tracer: StepTracer = field(default_factory=StepTracer)
    scores: RunningScores = field(init=False)

    def __post_init__(self) -> None:
        self.scores = RunningScores(self.evaluation.success_reward)

    async def run(self) -> None:
        """From the producer's version, which the engines serve.

        Raises Interrupted when it was asked to end, after a checkpoint of the version that it had reached.
        """
        if not self.producer.version:
            await self.evaluations.first()
        try:
            with self.stopping.heeded():
                async with self.evaluations, self.producer:
                    await self._evaluate(PhaseTimer(), self.producer.version)
                    for version in range(self.producer.version, self.config.steps):
                        await self._step(version)
        except Interrupted:
            if self.producer.version not in (0, self.saver.checkpoints.latest()):
                await self.save()
            raise
        finally:
            self.recorder.dropped_groups = self.producer.dropped_groups
        await self.evaluations.last(self.config.steps)

    async def _step(self, version: int) -> None:
        """Trains from `version`, publishes `version + 1`, then closes the books of what was trained.

        The batch is written down first: after a death anywhere from there on it is trained again, and booked once.
        """
        timer = PhaseTimer()
        with timer.phase("wait"):
            groups = await self.stopping.unless_asked(self.producer.take(self.config.groups_per_step))
        with timer.phase("batch"):
            prepared = prepare_batch(
                groups,
                version=version,
                staleness=self.staleness,
                algorithm=self.algorithm,
                estimate=self.estimate,
            )
            await asyncio.to_thread(self.log.write, prepared)
        with timer.phase("train"):
            metrics = await train_on(self.trainer, prepared)
        if self.evaluations.in_the_way:
            with timer.phase("evaluation"):
                await self.evaluations.ended()
        with timer.phase("publish"):
            swap_seconds = await self.publisher.publish(version + 1)
        self.producer.version = version + 1
        self.producer.settle(prepared.settlements, step=version + 1)
        self.scores.add(prepared.rewards)
        record = describe_step(
            prepared,
            metrics=metrics,
            swap=swap_seconds,
            producer=self.producer,
            success_reward=self.evaluation.success_reward,
        )
        if self.saver.due(version + 1) or version + 1 == self.config.steps:
            with timer.phase("checkpoint"):
                record.checkpoint = await self.save(record)
        await self._evaluate(timer, version + 1)
        self.tracer.stepped(groups, prepared, timer.phases, swap_seconds)
        record.phases = dict(timer.seconds)
        self.recorder.stepped(record)

    async def _evaluate(self, timer: PhaseTimer, version: int) -> None:
        """Begins that of the version that was published last, if it is due."""
        if self.evaluations.due(version):
            with timer.phase("evaluation"):
                await self.evaluations.begin(version)

    async def save(self, record: StepRecord | None = None) -> dict[str, float]:
        """The version that was published last, and its batches forgotten; what it took.

        `record` is of the step that made it, if that is not told yet: its batch is among those that are forgotten.
        """
        run = self.producer.position() | ({} if record is None else {RECORD: msgspec.to_builtins(record)})
        return await self.saver.save(self.producer.version, scores=self.scores.take(), run=run)
