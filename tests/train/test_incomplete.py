"""What a group did not wait for is in its books under its reason, and the rest of the group is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_loop import World
from twins import finished_trajectory

from agentrl.types import Group, Task


async def a_run(tmp_path: Path, *, cut: int, failing: bool = False) -> World:
    """One step of two groups; t0's group has cut the attempts after its first two, which had sampled."""
    world = World(tmp_path, steps=1, max_lag=0)
    run_group = world.rollouts.run_group

    async def with_a_tail(group_id: str, task: Task, **kwargs: Any) -> Group:
        group = await run_group(group_id, task, **kwargs)
        if task.id == "t0":
            group.cut = list(range(2, 2 + cut))
            for index in group.cut:
                late = finished_trajectory(
                    f"{group_id}-{index}", task, group_id=group_id, mode="train", reward=None, version=0
                )
                late.stop_reason = "env_crash" if failing else "cancelled"
                late.metadata["index"] = index
                world.store.save(late)
        return group

    world.rollouts.run_group = with_a_tail  # type: ignore[method-assign, assignment]
    await world.loop.run()
    return world


def outcomes(world: World) -> dict[str, str]:
    return {one.session_id: one.outcome for one in world.store.settlements() if one.session_id.startswith("000000")}


async def test_the_rest_of_the_group_is_trained_and_the_tail_is_counted(tmp_path: Path) -> None:
    world = await a_run(tmp_path, cut=2)
    assert outcomes(world) == {
        "000000-t0-0": "trained",
        "000000-t0-1": "trained",
        "000000-t0-2": "cut",
        "000000-t0-3": "cut",
    }
    [step] = world.recorder.steps
    assert step.dropped_tokens == {"cut": 6}
    assert (step.cut_episodes, step.incomplete_groups) == (2, {"late": 1})
    assert {group.outcome for group in world.store.groups()} == {"trained"}


async def test_of_an_attempt_that_was_cut_while_it_was_played_again_the_failed_one_is_not_called_cut(
    tmp_path: Path,
) -> None:
    assert outcomes(await a_run(tmp_path, cut=1, failing=True))["000000-t0-2"] == "retried"
