"""A trainer that survives its ranks: when one dies or hangs, all are started again and brought to where they were.

Engines go on serving meanwhile. What new ranks are given is the last checkpoint and the batches since, so they hold the
weights that the dead ones held, to rounding; what was asked of those is asked again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from agentrl.errors import TrainerError, TrainerLost
from agentrl.observe.faults import FaultRecord
from agentrl.supervision import Restarts
from agentrl.train.batch_log import BatchLog
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.ports import StepResult, Trainer
from agentrl.train.replay import plan_replay
from agentrl.train.saver import load_trainer
from agentrl.types import Batch, WeightGroup

logger = logging.getLogger(__name__)

T = TypeVar("T")
RanksT = TypeVar("RanksT", bound="Ranks")
PART = "trainer"


class Ranks(Trainer, Protocol):
    """One life of the ranks. Every call raises TrainerLost when one of them has died or hangs."""

    async def alive(self) -> None:
        """Returns when every rank has answered."""
        ...


class RecoveringTrainer(Generic[RanksT]):
    """The `Trainer` of a run. One call at a time.

    start: ends the ranks that there were and gives new ones, at the initial model; raises TrainerError. `fault` hears
    of every loss once it is over.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[RanksT]],
        restarts: Restarts,
        *,
        checkpoints: Checkpoints,
        log: BatchLog,
        fault: Callable[[FaultRecord], None],
    ) -> None:
        self._start, self._restarts = start, restarts
        self._checkpoints, self._log, self._fault = checkpoints, log, fault
        self._ranks: RanksT | None = None
        self._turn = asyncio.Lock()
        self._version = 0  # whose weights the ranks hold; one behind an empty batch, which they do not hear of
        self._well_at = 0.0
        self.life = 0

    async def start(self) -> None:
        async with self._turn:
            await self._begin()

    async def watch(self, every_s: float) -> None:
        """Returns never. Ranks that die while nothing is asked of them are found, too."""
        while True:
            await asyncio.sleep(every_s)
            await self.ask(lambda ranks: ranks.alive())

    async def step(self, batch: Batch) -> StepResult:
        async def step(ranks: RanksT) -> StepResult:
            result = await ranks.step(batch)
            self._version = batch.version + 1
            return result

        return await self.ask(step)

    async def export(self, directory: Path, version: int) -> None:
        await self.ask(lambda ranks: ranks.export(directory, version))

    async def save(self, directory: Path, version: int) -> None:
        async def save(ranks: RanksT) -> None:
            if directory.exists():  # what dead ranks have left of it
                await asyncio.to_thread(shutil.rmtree, directory)
            await ranks.save(directory, version)
            self._version = version

        await self.ask(save)

    async def load(self, directory: Path) -> int:
        async def load(ranks: RanksT) -> int:
            self._version = await ranks.load(directory)
            return self._version

        return await self.ask(load)

    async def num_weight_groups(self, *, changed_only: bool) -> int:
        return await self.ask(lambda ranks: ranks.num_weight_groups(changed_only=changed_only))

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        return await self.ask(lambda ranks: ranks.write_weight_group(version, index, changed_only=changed_only))

    async def discard_weight_group(self, group: WeightGroup) -> None:
        await self.ask(lambda ranks: ranks.discard_weight_group(group))

    async def send_weights(self, *, changed_only: bool) -> dict[str, float]:
        """Not sent again by other ranks: the engines wait for those that died."""

        async def send(ranks: RanksT) -> dict[str, float]:
            try:
                return await ranks.send_weights(changed_only=changed_only)
            except TrainerLost as lost:
                raise TrainerError(f"{lost}, in the middle of sending weights; go on with --resume") from lost

        return await self.ask(send)

    async def ask(self, work: Callable[[RanksT], Awaitable[T]]) -> T:
        """What the ranks answer, those that are there in the end."""
        async with self._turn:
            while True:
                assert self._ranks is not None, "start() comes first"
                try:
                    answer = await work(self._ranks)
                except TrainerLost as lost:
                    await self._recover(lost)
                else:
                    self._well_at = time.monotonic()
                    return answer

    async def _recover(self, lost: TrainerError) -> None:
        """Raises TrainerError after too many restarts, CheckpointError when the version cannot be made again."""
        seen_at, tries = time.monotonic(), 0
        what, unseen_s = str(lost), seen_at - self._well_at
        while True:
            wait_s = self._restarts.after_failure(time.monotonic(), jitter=random.random())
            if wait_s is None:
                self._fault(FaultRecord(part=PART, what=what, detected_s=unseen_s, recovered_s=None, restarts=tries))
                raise TrainerError(
                    f"{lost}; the ranks were started again {self._restarts.count} times. See logs/trainer-*.log, then "
                    "go on with --resume, or raise supervision.max_restarts"
                ) from lost
            logger.error("%s; starting all ranks again in %.1f s", lost, wait_s)
            await asyncio.sleep(wait_s)
            tries += 1
            try:
                await self._begin()
                await self._restore()
            except TrainerError as again:
                lost = again
                continue
            recovered_s = time.monotonic() - seen_at
            self._fault(FaultRecord(part=PART, what=what, detected_s=unseen_s, recovered_s=recovered_s, restarts=tries))
            return

    async def _begin(self) -> None:
        self._ranks = await self._start()
        self.life += 1
        self._well_at = time.monotonic()

    async def _restore(self) -> None:
        assert self._ranks is not None
        replay = plan_replay(
            checkpoints=[version for version in self._checkpoints.resumable() if version <= self._version],
            logged=[version for version in self._log.versions() if version < self._version],
            reached=self._version,
        )
        if replay.checkpoint is not None:
            await load_trainer(self._ranks, self._checkpoints, replay.checkpoint)
        for version in replay.batches:
            batch = (await asyncio.to_thread(self._log.read, version)).batch
            if batch.rows:
                await self._ranks.step(batch)
