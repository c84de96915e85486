"""Which groups a step takes while others are slow, in the loop: what is passed over, waited for, cut, and counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_loop import World

from agentrl.config import RunConfig
from agentrl.train.config import LoopConfig, StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.types import Batch, Task


def a_world(tmp_path: Path, *, policy: str = "mask", **settings: Any) -> World:
    """Two groups of two a step, of which t0's is slow until `world.let_go`."""
    loop = {
        name: settings.pop(name) for name in ("order", "cut_tail", "tail_patience_s", "max_groups") if name in settings
    }
    world = World(tmp_path, policy=policy, **settings)
    config = LoopConfig(steps=world.loop.config.steps, groups_per_step=2, group_timeout_s=30, **loop)
    world.loop.config = config
    world.producer = world.loop.producer = GroupProducer(
        tasks=(Task(id=f"t{number}", env_id="e", seed=number) for number in range(100)),
        rollouts=world.rollouts,
        scorer=world.producer._scorer,
        store=world.store,
        loop=config,
        staleness=StalenessConfig(max_lag=world.loop.staleness.max_lag, policy=policy),
        group_size=2,
    )
    return world


def slow_until(version: int) -> tuple[Callable[[Task], asyncio.Event | None], Callable[[Batch], None]]:
    """t0's first attempt ends while that version is trained from."""
    late, held = asyncio.Event(), list[str]()

    def hold(task: Task) -> asyncio.Event | None:
        if task.id != "t0" or held:
            return None
        held.append(task.id)
        return late

    return hold, lambda batch: late.set() if batch.version == version else None


def trained(world: World) -> list[list[str]]:
    """The tasks of each step."""
    return [sorted({row.session_id.split("-")[1] for row in batch.rows}) for batch in world.trainer.batches]


async def test_finished_groups_pass_a_slow_one_that_is_then_too_old(tmp_path: Path) -> None:
    hold, on_step = slow_until(2)
    world = a_world(tmp_path, steps=4, max_lag=1, hold=hold, on_step=on_step)
    await world.loop.run()
    assert trained(world)[:3] == [["t1", "t2"], ["t3", "t4"], ["t5", "t6"]]
    assert world.producer.dropped_groups["stale"] == 1


@pytest.mark.parametrize(
    ("order", "released_by", "first_steps"),
    [("admitted", "t3", [["t0", "t1"], ["t2", "t3"]]), ("due", "t5", [["t1", "t2"], ["t0", "t3"]])],
)
async def test_a_slow_group_is_waited_for_where_none_may_become_too_old(
    tmp_path: Path, order: str, released_by: str, first_steps: list[list[str]]
) -> None:
    """K = 1, so t0 can be trained from versions 0 and 1. It ends after all groups of version 0 have begun, or after
    those of version 1: `due` passes it over once."""
    late = asyncio.Event()

    def hold(task: Task) -> asyncio.Event | None:
        if task.id == released_by:
            late.set()
        return late if task.id == "t0" else None

    world = a_world(tmp_path, steps=3, max_lag=1, order=order, hold=hold)
    await world.loop.run()
    assert trained(world)[:2] == first_steps
    assert world.producer.dropped_groups["stale"] == 0


async def test_a_synchronous_step_goes_on_without_its_tail_which_is_counted(tmp_path: Path) -> None:
    """Half suffices: step 1 trains t1 alone; t0 ends under version 1, all of it sampled under 0."""
    hold, on_step = slow_until(0)
    world = a_world(tmp_path, steps=3, max_lag=0, cut_tail=0.5, tail_patience_s=0.0, hold=hold, on_step=on_step)
    await world.loop.run()
    assert trained(world)[0] == ["t1"]
    assert world.recorder.steps[0].cut_groups == 1
    assert {group.outcome for group in world.store.groups() if group.task.id == "t0"} == {"stale"}
    assert {lag for step in world.recorder.steps for lag in step.staleness} == {0}


async def test_a_tail_that_ends_within_the_patience_is_trained_with_the_others(tmp_path: Path) -> None:
    """t0 ends after t1, and long before anybody's patience does."""
    late = asyncio.Event()
    world = a_world(
        tmp_path, steps=2, max_lag=0, cut_tail=0.5, tail_patience_s=300.0,
        hold=lambda task: late if task.id == "t0" else None,
    )  # fmt: skip
    running = asyncio.create_task(world.loop.run())
    while (await world.rollouts.finished.get()) != "000001-t1":
        pass
    late.set()
    await running
    assert trained(world)[0] == ["t0", "t1"]


async def test_the_task_of_a_tail_comes_back_when_the_policy_says_so(tmp_path: Path) -> None:
    hold, on_step = slow_until(0)
    world = a_world(
        tmp_path, steps=3, max_lag=0, cut_tail=0.5, tail_patience_s=0.0, policy="requeue", hold=hold, on_step=on_step
    )
    await world.loop.run()
    first, *again = [group.outcome for group in world.store.groups() if group.task.id == "t0"]
    assert first == "stale"
    assert again


async def test_fewer_groups_are_under_way_when_the_configuration_says_so(tmp_path: Path) -> None:
    most: list[int] = []
    world = a_world(
        tmp_path, steps=3, max_lag=4, max_groups=3, on_step=lambda batch: most.append(len(world.open_groups()))
    )
    world.open_groups = lambda: list(world.store.groups(open_only=True))  # type: ignore[attr-defined]
    await world.loop.run()
    assert most == [3, 3, 3]


def test_a_tail_is_cut_in_a_synchronous_run_only() -> None:
    run = {"name": "x", "environment": {"id": "agentrl/Calculator-v0"}, "loop": {"cut_tail": 0.5}}
    with pytest.raises(ValueError, match=r"loop\.cut_tail = 0\.5 is for synchronous runs, and staleness\.max_lag is 1"):
        RunConfig.model_validate(run)
    with pytest.raises(ValueError, match=r"engine\.sleep_level = 1 the engines sleep then"):
        RunConfig.model_validate({**run, "mode": "colocated"})
    assert RunConfig.model_validate({**run, "staleness": {"max_lag": 0}}).loop.cut_tail == 0.5


def test_more_groups_than_may_be_under_way_are_refused_in_a_step() -> None:
    with pytest.raises(ValueError, match="max_groups = 4 is less than groups_per_step = 8"):
        LoopConfig(max_groups=4)
