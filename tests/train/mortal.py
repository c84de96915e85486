"""A driver that can be killed at any of its dealings with the world, and one that goes on after it, over twins.

What outlives a driver is here as in a run: the store, the batch log, the checkpoints, `metrics.jsonl`. Engines and
trainer begin anew with each driver.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from twins import TwinEngines, TwinRollouts, TwinScorer, TwinSwap, TwinTrainer, in_one_thread

from agentrl.gateway.sealing import Sealed
from agentrl.observe.files import JsonLines
from agentrl.observe.history import read_history
from agentrl.observe.recorder import Recorder
from agentrl.store.memory import MemoryStore
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.ports import StepResult
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher
from agentrl.train.resume import catch_up
from agentrl.train.saver import CheckpointSaver
from agentrl.train.stopping import Stopping
from agentrl.types import Batch, Task, WeightGroup
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


class Killed(BaseException):
    """No code of the driver's catches this."""


class Fuse:
    """Burns down by one at each dealing with the world, before it and after it; at 0 the driver is dead for good."""

    def __init__(self, length: int | None = None) -> None:
        self.burnt = 0
        self._length = length
        self._kill: Callable[[], object] = lambda: None

    @property
    def blown(self) -> bool:
        return self._length is not None and self.burnt >= self._length

    def burn(self) -> None:
        if not self.blown:
            self.burnt += 1
        if self.blown:
            self._kill()
            raise Killed

    def kills(self, task: asyncio.Task[Any]) -> None:
        loop = asyncio.get_running_loop()
        self._kill = lambda: loop.call_soon_threadsafe(task.cancel)


class Mortal:
    """The methods of something outside the driver, each of which it may not live to call, or to hear of."""

    def __init__(self, real: Any, fuse: Fuse) -> None:
        self._real, self._fuse = real, fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found):
            return found
        if inspect.iscoroutinefunction(found):

            async def dealt(*args: Any, **kwargs: Any) -> Any:
                self._fuse.burn()
                answer = await found(*args, **kwargs)
                self._fuse.burn()
                return answer

            return dealt

        def deal(*args: Any, **kwargs: Any) -> Any:
            self._fuse.burn()
            answer = found(*args, **kwargs)
            self._fuse.burn()
            return answer

        return deal


class LineageTrainer(TwinTrainer):
    """Its weights are the digest of all batches that they were made of, in order."""

    weights = "initial"

    async def step(self, batch: Batch) -> StepResult:
        result = await super().step(batch)
        rows = [msgspec.structs.replace(row, session_id="") for row in batch.rows]
        made_of = self.weights.encode() + msgspec.json.encode((batch.version, rows))
        self.weights = hashlib.sha256(made_of).hexdigest()
        return result

    async def save(self, directory: Path, version: int) -> None:
        directory.mkdir()
        (directory / "state.json").write_text(json.dumps([version, self.weights]))

    async def load(self, directory: Path) -> int:
        version, self.weights = json.loads((directory / "state.json").read_text())
        return int(version)

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        group = await super().write_weight_group(version, index, changed_only=changed_only)
        return msgspec.structs.replace(group, digest=self.weights)


class MortalEngines(TwinEngines):
    def __init__(self, world: Mortals, store: Any, fuse: Fuse) -> None:
        super().__init__(store)
        self._world, self._fuse = world, fuse

    @asynccontextmanager
    async def swap(self, version: int) -> AsyncIterator[TwinSwap]:
        self._fuse.burn()
        async with super().swap(version) as swap:
            yield swap
            self._fuse.burn()
            self._world.served.append((version, swap.loaded[0].digest))
        self._fuse.burn()


class Mortals:
    """A run's world, and the drivers that come and go in it."""

    def __init__(self, directory: Path, *, steps: int = 3, max_lag: int = 0, every: int = 2) -> None:
        self.directory = directory
        self.store = MemoryStore()
        self.served: list[tuple[int, str]] = []  # every version that engines took, with the weights it was
        self.served_before: list[int] = []  # how many of them, by when each driver began
        self.trained: dict[int, str] = {}  # of the last life: version -> weights
        self.recorder = Recorder([])
        self.stopping = Stopping()  # of the present driver
        self.on_step: Callable[[Batch], object] | None = None
        self._lives = 0
        self._loop = LoopConfig(steps=steps, groups_per_step=2)
        self._staleness = StalenessConfig(max_lag=max_lag)
        self._checkpoint = CheckpointConfig(every=every, keep_last=1)

    async def live(self, fuse: Fuse) -> bool:
        """One driver, from its start to its end; whether it lived to the end of the run."""
        in_one_thread()
        self._lives += 1
        self.served_before.append(len(self.served))
        self.stopping = Stopping()
        driver = asyncio.create_task(self._drive(fuse))
        fuse.kills(driver)
        with suppress(Killed, asyncio.CancelledError):
            await driver
            return True
        return False

    async def _drive(self, fuse: Fuse) -> None:
        metrics = self.directory / "metrics.jsonl"
        history = read_history(metrics)
        file = JsonLines(metrics)
        self.recorder = Recorder([Mortal(file, fuse)], history)
        loop = self._build(fuse)
        try:
            if self._lives > 1:
                await catch_up(loop, loop.producer._store, Sealed())
            await loop.run()
        finally:
            file.close()

    def _build(self, fuse: Fuse) -> TrainLoop:
        store: Any = Mortal(self.store, fuse)
        trainer: Any = Mortal(LineageTrainer(self.directory, groups=1, on_step=self.on_step), fuse)
        engines = MortalEngines(self, store, fuse)
        rollouts = TwinRollouts(store, engines, suffix=f"~{self._lives}")
        scorer = TwinScorer()
        log: Any = Mortal(DiskBatchLog(self.directory / "batches"), fuse)
        evaluation = EvaluationConfig(tasks=1)
        return TrainLoop(
            config=self._loop,
            staleness=self._staleness,
            algorithm=AlgorithmConfig(),
            evaluation=evaluation,
            log=log,
            saver=CheckpointSaver(self.directory / "checkpoints", self._checkpoint, trainer, log),
            producer=GroupProducer(
                tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count()),
                rollouts=Mortal(rollouts, fuse),  # type: ignore[arg-type]
                scorer=scorer,
                store=store,
                loop=self._loop,
                staleness=self._staleness,
                group_size=2,
            ),
            evaluations=Evaluations(
                Evaluator(
                    tasks=[Task(id="held-out", env_id="e", seed=1000)],
                    rollouts=Mortal(rollouts, fuse),  # type: ignore[arg-type]
                    scorer=scorer,
                    config=evaluation,
                    progress=lambda what, done, total: None,
                ),
                evaluation,
                self.recorder,
            ),
            trainer=trainer,
            publisher=GroupPublisher(trainer=trainer, engines=engines),
            estimate=group_advantages,
            recorder=self.recorder,
            stopping=self.stopping,
        )
