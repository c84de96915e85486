"""From what a run that died left on the disk to where it stood: weights, books, metrics, engines.

Nothing is rolled back. The batches since the last checkpoint are in the log, so they are trained again, and every
version number in the store stays true (docs/decisions/0028-replay-not-rollback.md). Each part may be done again: a
start that dies in the middle of this leaves nothing that the next one minds.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec

from agentrl.gateway.sealing import Sealed
from agentrl.observe.records import ResumeRecord, StepRecord
from agentrl.observe.timing import PhaseTimer
from agentrl.store.base import TRAINED, TrajectoryStore
from agentrl.train.batch import PreparedBatch
from agentrl.train.loop import RECORD, TrainLoop
from agentrl.train.replay import Replay, plan_replay
from agentrl.train.report import describe_step
from agentrl.train.step import train_on


async def catch_up(loop: TrainLoop, store: TrajectoryStore, sealed: Sealed) -> None:
    """The loop of a new driver, before it runs. `sealed`: what was ended of the sessions that the dead one left.

    Raises CheckpointError when the newest version cannot be made again.
    """
    await asyncio.to_thread(loop.saver.checkpoints.tidy)
    replay = plan(loop, store)
    adopted = _take_over_books(loop, store, replay)
    if replay.checkpoint is not None:
        run = await loop.saver.restore(replay.checkpoint)
        if RECORD in run:
            _tell(loop, msgspec.convert(run[RECORD], StepRecord, str_keys=True))
    for version in replay.batches:
        await _train_again(loop, store, version)
    if loop.producer.version != replay.version:
        loop.producer.version = replay.version
    if replay.version:
        await loop.publisher.publish(replay.version)
    if loop.saver.overdue(replay.checkpoint or 0, replay.version):
        await loop.save()
    loop.recorder.resumed(
        ResumeRecord(
            version=replay.version,
            checkpoint=replay.checkpoint,
            replayed=len(replay.batches),
            adopted_groups=adopted,
            sealed_sessions=sealed.sessions,
            sealed_tokens=sealed.tokens,
        )
    )


def plan(loop: TrainLoop, store: TrajectoryStore) -> Replay:
    """Raises CheckpointError."""
    trained = (settlement.step for settlement in store.settlements() if settlement.outcome == TRAINED)
    recorded = (record.step for record in loop.recorder.steps)
    return plan_replay(
        checkpoints=loop.saver.checkpoints.resumable(),
        logged=loop.log.versions(),
        reached=max([0, *trained, *recorded]),
    )


def _take_over_books(loop: TrainLoop, store: TrajectoryStore, replay: Replay) -> int:
    """How many groups are played on: those that were admitted, not closed, and are in no batch of the log."""
    producer = loop.producer
    if (position := store.position()) is not None:
        producer.restore(msgspec.json.decode(position))
    left = list(store.groups(open_only=True))
    logged = {group_id for version in replay.batches for group_id in loop.log.read(version).settlements}
    producer.adopt(left, logged=logged)
    producer.dropped_groups = Counter(
        group.outcome for group in store.groups() if group.outcome is not None and group.outcome != TRAINED
    )
    if loop.recorder.steps:
        last = loop.recorder.steps[-1]
        producer.failed_episodes = Counter(last.failed_episodes)
        producer.retried_episodes = Counter(last.retried_episodes)
        producer.refilled_groups = last.refilled_groups
        producer.cut_groups, producer.cut_episodes = last.cut_groups, last.cut_episodes
        producer.incomplete_groups = Counter(last.incomplete_groups)
    return sum(group.group_id not in logged for group in left)


async def _train_again(loop: TrainLoop, store: TrajectoryStore, version: int) -> None:
    """A batch of the log: its books are closed and its step is told where that had not been done."""
    timer = PhaseTimer()
    with timer.phase("replay"):
        prepared = await asyncio.to_thread(loop.log.read, version)
        metrics = await train_on(loop.trainer, prepared)
    _settle(loop, store, prepared)
    loop.scores.add(prepared.rewards)
    success_reward = loop.evaluation.success_reward
    record = describe_step(prepared, metrics=metrics, swap={}, producer=loop.producer, success_reward=success_reward)
    record.phases = dict(timer.seconds)
    _tell(loop, record)


def _tell(loop: TrainLoop, record: StepRecord) -> None:
    """Unless the dead driver did."""
    if all(told.step != record.step for told in loop.recorder.steps):
        loop.recorder.stepped(record)


def _settle(loop: TrainLoop, store: TrajectoryStore, prepared: PreparedBatch) -> None:
    """Each group once: those that the dead driver had closed are left alone."""
    step = prepared.batch.version + 1
    still_open = {group.group_id for group in store.groups(open_only=True)}
    settlements = {name: of_group for name, of_group in prepared.settlements.items() if name in still_open}
    if settlements:
        loop.producer.version = max(step, loop.producer.version)
        loop.producer.settle(settlements, step=step)
