"""The death of a trainer rank costs time and nothing else: new ranks hold the weights of the dead ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from mortal import LineageTrainer
from twins import TwinEngines

from agentrl.errors import CheckpointError, TrainerError, TrainerLost
from agentrl.observe.faults import FaultRecord
from agentrl.store.memory import MemoryStore
from agentrl.supervision import Restarts, SupervisionConfig
from agentrl.train.batch import PreparedBatch
from agentrl.train.batch_log import MemoryBatchLog
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.config import CheckpointConfig
from agentrl.train.publish import GroupPublisher
from agentrl.train.recovery import RecoveringTrainer
from agentrl.train.saver import CheckpointSaver
from agentrl.types import Batch, TrainRow, WeightGroup


def prepared(version: int, *, rows: int = 1) -> PreparedBatch:
    row = TrainRow(
        session_id="s", token_ids=[1, version], loss_mask=[0, 1], logprobs=[0.0, -0.5], advantages=[0.0, 1.0]
    )
    return PreparedBatch(Batch(version=version, rows=[row] * rows), settlements={})


class MortalRanks(LineageTrainer):
    """Dies in the calls that `die` names by method and by how often that was called, over all lives."""

    def __init__(self, directory: Path, calls: dict[str, int], die: Callable[[str, int], bool]) -> None:
        super().__init__(directory)
        self._calls, self._die = calls, die

    def _called(self, method: str) -> None:
        self._calls[method] = self._calls.get(method, 0) + 1
        if self._die(method, self._calls[method]):
            raise TrainerLost(f"trainer rank 0 died in {method}")

    async def alive(self) -> None:
        self._called("alive")

    async def step(self, batch: Batch):  # type: ignore[no-untyped-def]
        self._called("step")
        return await super().step(batch)

    async def save(self, directory: Path, version: int) -> None:
        directory.mkdir()
        (directory / "half").write_text("of a checkpoint")
        self._called("save")
        (directory / "half").unlink()
        directory.rmdir()
        await super().save(directory, version)

    async def write_weight_group(self, version: int, index: int, *, changed_only: bool) -> WeightGroup:
        self._called("write_weight_group")
        return await super().write_weight_group(version, index, changed_only=changed_only)


class World:
    def __init__(
        self, directory: Path, die: Callable[[str, int], bool], *, max_restarts: int = 10, every: int = 2
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.lives: list[MortalRanks] = []
        self.faults: list[FaultRecord] = []
        self.faulty = asyncio.Event()
        self.log = MemoryBatchLog()
        calls: dict[str, int] = {}

        async def start() -> MortalRanks:
            self.lives.append(MortalRanks(directory, calls, die))
            return self.lives[-1]

        config = CheckpointConfig(every=every)
        self.trainer: RecoveringTrainer[MortalRanks] = RecoveringTrainer(
            start,
            Restarts(SupervisionConfig(max_restarts=max_restarts, backoff_s=0.001, backoff_max_s=0.001)),
            checkpoints=Checkpoints(directory / "checkpoints"),
            log=self.log,
            fault=self._tell,
        )
        self.saver = CheckpointSaver(directory / "checkpoints", config, self.trainer, self.log)
        self.engines = TwinEngines(MemoryStore())
        self.publisher = GroupPublisher(trainer=self.trainer, engines=self.engines)

    def _tell(self, fault: FaultRecord) -> None:
        self.faults.append(fault)
        self.faulty.set()

    @property
    def weights(self) -> str:
        return self.lives[-1].weights

    async def run(self, steps: int = 5, empty: frozenset[int] = frozenset()) -> None:
        """As the loop does it."""
        await self.trainer.start()
        for version in range(steps):
            batch = prepared(version, rows=version not in empty)
            self.log.write(batch)
            if batch.batch.rows:
                await self.trainer.step(batch.batch)
            await self.publisher.publish(version + 1)
            if self.saver.due(version + 1):
                await self.saver.save(version + 1, scores={}, run={})


def never(method: str, count: int) -> bool:
    return False


async def weights_without_a_death(directory: Path, empty: frozenset[int] = frozenset()) -> str:
    world = World(directory, never)
    await world.run(empty=empty)
    return world.weights


@pytest.mark.parametrize("method", ["step", "save", "write_weight_group"])
@pytest.mark.parametrize("count", range(1, 6))
async def test_whenever_a_rank_dies_the_weights_are_those_of_a_run_without_a_death(
    tmp_path: Path, method: str, count: int
):
    expected = await weights_without_a_death(tmp_path / "whole")
    world = World(tmp_path / "mortal", lambda called, number: (called, number) == (method, count))
    await world.run()
    assert world.weights == expected
    assert [swap.loaded[-1].version for swap in world.engines.swaps] == [1, 2, 3, 4, 5]
    dies = method != "save" or count <= 2
    assert (len(world.lives), len(world.faults)) == (1 + dies, dies)
    assert sorted(world.saver.checkpoints.resumable()) == [2, 4]


async def test_versions_without_a_batch_are_not_missed_when_the_ranks_are_new(tmp_path: Path):
    """Version 2 is empty and its checkpoint holds what version 1 was; then the third step's ranks die."""
    empty = frozenset({1})
    expected = await weights_without_a_death(tmp_path / "whole", empty)
    world = World(tmp_path / "mortal", lambda called, number: (called, number) == ("step", 2))
    await world.run(empty=empty)
    assert world.weights == expected


async def test_new_ranks_send_all_tensors_before_they_leave_any_out(tmp_path: Path):
    """Two groups a version: of version 3 the fifth write is the first, before which nothing was sent."""
    world = World(tmp_path, lambda called, number: (called, number) == ("write_weight_group", 5))
    await world.run(4)
    assert [life.changed_only for life in world.lives] == [[False, True, True], [False, True]]


async def test_a_version_of_which_two_lives_sent_a_part_is_followed_by_a_whole_one(tmp_path: Path):
    world = World(tmp_path, lambda called, number: (called, number) == ("write_weight_group", 6))
    await world.run(5)
    assert [life.changed_only for life in world.lives] == [[False, True, True], [False, True]], "versions 1-3, 4-5"


async def test_a_death_while_nothing_is_asked_is_seen_by_the_watch(tmp_path: Path):
    world = World(tmp_path, lambda called, number: (called, number) == ("alive", 2))
    await world.run(1)
    weights = world.weights
    watching = asyncio.create_task(world.trainer.watch(0.0))
    async with asyncio.timeout(10):
        await world.faulty.wait()
    watching.cancel()
    assert (world.weights, len(world.lives)) == (weights, 2)
    [fault] = world.faults
    assert (fault.part, fault.what, fault.restarts) == ("trainer", "trainer rank 0 died in alive", 1)
    assert fault.recovered_s is not None


async def test_ranks_that_die_again_and_again_are_given_up(tmp_path: Path):
    """Three restarts are allowed; the fourth death ends it."""
    world = World(tmp_path, lambda called, number: called == "step", max_restarts=3)
    with pytest.raises(TrainerError, match=r"rank 0 died in step; the ranks were started again 3 times"):
        await world.run()
    assert len(world.lives) == 4
    assert [fault.recovered_s is None for fault in world.faults] == [False, False, False, True]


async def test_a_version_that_cannot_be_made_again_ends_the_run_with_what_is_missing(tmp_path: Path):
    world = World(tmp_path, lambda called, number: (called, number) == ("step", 2))
    await world.trainer.start()
    await world.trainer.step(prepared(0).batch)  # and nobody wrote it down
    with pytest.raises(CheckpointError, match="had reached version 1, and from the initial model only version 0"):
        await world.trainer.step(prepared(1).batch)
