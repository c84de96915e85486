"""A driver that died is followed by one that has the store alone: no task is lost, none is drawn or trained twice."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from twins import TwinEngines, TwinRollouts, TwinScorer, finished_trajectory, in_one_thread

from agentrl.errors import StoreError
from agentrl.store.base import Settlement, TrajectoryStore
from agentrl.store.memory import MemoryStore
from agentrl.train.batch import PreparedBatch, prepare_batch
from agentrl.train.config import AlgorithmConfig, LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.train.task_source import IteratedTasks
from agentrl.types import Task, Trajectory
from agentrl_trainers.algorithms.advantages.grpo import group_advantages

STEPS = 4


class Remembering(IteratedTasks):
    """A source whose state is what it was told."""

    def __init__(self) -> None:
        super().__init__(Task(id=f"t{number}", env_id="e", seed=number) for number in itertools.count())
        self.told: list[list[Any]] = []

    def observe(self, task: Task, successes: Sequence[bool]) -> None:
        self.told.append([task.id, list(successes)])

    def state(self) -> dict[str, Any]:
        return {**super().state(), "told": self.told}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.told = list(state["told"])


class Driver:
    """Two groups of two a step, K = 1, over a store that outlives it."""

    def __init__(self, store: TrajectoryStore, *, suffix: str = "") -> None:
        in_one_thread()
        self.store = store
        self.engines = TwinEngines(store)
        self.rollouts = TwinRollouts(store, self.engines, suffix=suffix)
        self.prepared: PreparedBatch | None = None  # of the step under way, as a batch log would have it
        self.producer = GroupProducer(
            tasks=Remembering(),
            rollouts=self.rollouts,
            scorer=TwinScorer(),
            store=store,
            loop=LoopConfig(steps=STEPS, groups_per_step=2, order="admitted"),
            staleness=StalenessConfig(max_lag=1),
            group_size=2,
        )

    def go_on(self, logged: PreparedBatch | None) -> None:
        """What a resume does, its weights left out."""
        if (position := self.store.position()) is not None:
            self.producer.restore(json.loads(position))
        still_open = list(self.store.groups(open_only=True))
        batch = {} if logged is None else logged.settlements
        of_batch = {record.group_id: batch[record.group_id] for record in still_open if record.group_id in batch}
        self.producer.adopt(still_open, logged=of_batch)
        if logged is not None:
            self.engines.version = self.producer.version = logged.batch.version + 1
            self.producer.settle(of_batch, step=logged.batch.version + 1)

    async def run(self) -> None:
        async with self.producer:
            for version in range(self.producer.version, STEPS):
                groups = await self.producer.take(2)
                self.prepared = prepare_batch(
                    groups, version=version, staleness=StalenessConfig(max_lag=1), algorithm=AlgorithmConfig(),
                    estimate=group_advantages,
                )  # fmt: skip
                self.engines.version = self.producer.version = version + 1
                self.producer.settle(self.prepared.settlements, step=version + 1)
                self.prepared = None


class Dies(MemoryStore):
    """After so many admissions and settlements its driver is gone, the last of them written or just not."""

    def __init__(self, writes: int, *, written: bool) -> None:
        super().__init__()
        self.left, self.written = writes, written

    def admit(self, group_id: str, task: Task, version: int, position: bytes | None = None) -> None:
        self._write(lambda: MemoryStore.admit(self, group_id, task, version, position))

    def settle(
        self,
        group_id: str,
        outcome: str,
        step: int | None,
        settlements: Iterable[Settlement] = (),
        position: bytes | None = None,
    ) -> None:
        self._write(lambda: MemoryStore.settle(self, group_id, outcome, step, list(settlements), position))

    def _write(self, write: object) -> None:
        self.left -= 1
        if self.left == 0 and not self.written:
            raise StoreError("killed")
        write()  # type: ignore[operator]
        if self.left == 0:
            raise StoreError("killed")


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("writes", range(1, 21))
async def test_whichever_write_a_driver_dies_at_each_task_is_trained_once_and_in_order(
    writes: int, written: bool
) -> None:
    """Case 68: tasks 0 to 7 and two more, two a step, four ahead.

    A run is 4 admissions, then 2 settlements and 2 admissions for each of 3 steps, 2 settlements, 2 closings.
    """
    store = Dies(writes, written=written)
    first = Driver(store)
    with pytest.raises(StoreError, match="killed"):
        await first.run()
    second = Driver(store, suffix="-again")
    second.go_on(first.prepared)
    await second.run()
    assert [record.task.id for record in store.groups()] == [f"t{number}" for number in range(10)]
    trained = [(record.task.id, record.step) for record in store.groups() if record.outcome == "trained"]
    assert trained == [(f"t{number}", number // 2 + 1) for number in range(8)]
    assert {record.outcome for record in store.groups()} == {"trained", "run_ended"}
    last = json.loads(store.position() or b"")
    assert last["tasks"]["told"] == [[f"t{number}", [False, True]] for number in range(8)]


def attempt(index: int, *, group_id: str = "000000-t0", **changes: object) -> Trajectory:
    found = finished_trajectory(
        f"old-{index}", Task(id="t0", env_id="e"), group_id=group_id, mode="train", reward=1.0, version=0
    )
    found.metadata["index"], found.components = index, {"env": 1.0}
    for name, value in changes.items():
        setattr(found, name, value)
    return found


async def adopted(*found: Trajectory) -> Driver:
    """A driver that goes on where one died that had admitted t0 and left these trajectories of it."""
    store = MemoryStore()
    store.admit("000000-t0", Task(id="t0", env_id="e"), 0)
    for trajectory in found:
        store.save(trajectory)
    driver = Driver(store)
    driver.producer.restore({**driver.producer.position(), "next_group": 1, "tasks": {"drawn": 1, "told": []}})
    driver.go_on(None)
    await driver.run()
    return driver


async def test_finished_attempts_are_kept_and_the_missing_ones_played() -> None:
    driver = await adopted(attempt(1))
    assert list(driver.rollouts.had["000000-t0"]) == [1]
    outcomes = {one.session_id: one.outcome for one in driver.store.settlements()}
    assert (outcomes["000000-t0-0"], outcomes["old-1"]) == ("trained", "trained")
    assert "000000-t0-1" not in outcomes


@pytest.mark.parametrize(
    "changes",
    [{"stop_reason": "cancelled"}, {"stop_reason": "env_crash", "reward": None}, {"components": {}, "reward": None}],
    ids=["cut off by the death", "failed", "not graded yet"],
)
async def test_an_attempt_that_was_not_done_is_played_again_and_booked_as_that(changes: dict[str, object]) -> None:
    driver = await adopted(attempt(0), attempt(1, **changes))
    assert list(driver.rollouts.had["000000-t0"]) == [0]
    outcomes = {one.session_id: one.outcome for one in driver.store.settlements()}
    assert outcomes["old-1"] == "retried"
    assert (outcomes["old-0"], outcomes["000000-t0-1"]) == ("trained", "trained")


async def test_what_services_added_is_not_taken_for_the_environments_reward() -> None:
    driver = await adopted(attempt(0, reward=7.0, components={"env": 1.0, "judge": 6.0}), attempt(1))
    assert [episode.reward for episode in driver.rollouts.had["000000-t0"].values()] == [1.0, 1.0]
