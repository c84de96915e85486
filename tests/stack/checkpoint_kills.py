"""A trainer in a process of its own that goes on from the latest checkpoint and is killed while it saves the next."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

from checkpoint_ranks import replayed
from killed_saves import count_touches, kill_at_touch
from trainer_ranks import forkserver

from agentrl.train.config import CheckpointConfig
from agentrl.train.saver import CheckpointSaver
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed.rank import TrainerRank

CONFIG = TrainerConfig(learning_rate=1e-2)


class OneRank:
    """A lone rank as the port that the saver wants."""

    def __init__(self, rank: TrainerRank) -> None:
        self._rank = rank

    async def export(self, directory: Path, version: int) -> None:
        self._rank.export(str(directory), version)

    async def save(self, directory: Path, version: int) -> None:
        self._rank.save(str(directory), version)

    async def load(self, directory: Path) -> int:
        return self._rank.load(str(directory))


class Life(NamedTuple):
    """status: `Process.exitcode`. The version that it stepped from and the step's loss; touches if it lived."""

    status: int | None
    version: int
    loss: float
    touches: int | None


def live(model_dir: Path, directory: Path, killed_at: int | None, timeout_s: float = 120) -> Life:
    """`save_next` in a process forked from a server that has imported everything: it costs half a second."""
    context = forkserver()
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=save_next, args=(theirs, model_dir, directory, killed_at), daemon=True)
    process.start()
    theirs.close()
    try:
        assert ours.poll(timeout_s), "it said nothing"
        version, loss = ours.recv()
        process.join(timeout_s)
        touches = ours.recv() if process.exitcode == 0 else None
    finally:
        process.kill()
        process.join()
    return Life(process.exitcode, version, loss, touches)


def save_next(send: Any, model_dir: Path, directory: Path, killed_at: int | None) -> None:
    """Go on from the latest checkpoint, make a step, save it; die at touch `killed_at` of the checkpoints."""
    rank = TrainerRank(0, 1, "127.0.0.1", 0, str(model_dir), CONFIG, 100)
    rank.setup()
    saver = CheckpointSaver(directory, CheckpointConfig(keep_last=1), OneRank(rank))
    saver.checkpoints.tidy()
    version = saver.checkpoints.latest() or 0
    if version:
        assert asyncio.run(saver.restore(version)) == {"version": version}
    send.send((version, rank.step(replayed(version)).loss))
    touches = count_touches(directory)
    if killed_at is not None:
        kill_at_touch(killed_at, directory)
    asyncio.run(saver.save(version + 1, scores={}, run={"version": version + 1}))
    send.send(len(touches))


def unbroken(rank: int, world_size: int, ports: Any, model_dir: Path, steps: int) -> list[float]:
    """The losses of a trainer that nobody disturbs."""
    trainer = TrainerRank(rank, world_size, "127.0.0.1", 0, str(model_dir), CONFIG, 100)
    trainer.setup()
    return [trainer.step(replayed(version)).loss for version in range(steps)]
