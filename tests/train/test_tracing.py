"""Every step tells the traces which groups it trained, which were given up before it, and where its own time went."""

from __future__ import annotations

from pathlib import Path

from test_loop import World

from agentrl.observe.step_trace import GroupTrace
from agentrl.types import Task


def outcomes(groups: list[GroupTrace]) -> list[tuple[str, str, list[str]]]:
    return [(group.task.id, group.outcome, [each.outcome for each in group.episodes]) for group in groups]


async def test_a_step_says_what_it_trained_and_how_long_each_phase_took(tmp_path: Path):
    world = World(tmp_path, steps=2)
    await world.loop.run()
    assert [step.step for step in world.traces.steps] == [1, 2]
    first, second = world.traces.steps
    assert outcomes(list(first.groups)) == [(t, "trained", ["trained", "trained"]) for t in ("t0", "t1")]
    assert [each.trained_tokens for group in first.groups for each in group.episodes] == [3] * 4
    assert {each.max_lag for group in second.groups for each in group.episodes} <= {0, 1}
    assert [phase.name for phase in second.phases] == ["wait", "batch", "train", "publish", "checkpoint"]
    assert second.numbers["trained_tokens"] == 12.0
    for group in first.groups:
        times = [group.admitted_at, group.played_at, group.scored_at]
        assert times == sorted(times, key=lambda time: time or 0.0)


async def test_a_group_that_no_step_trains_is_in_the_trace_of_the_next_one(tmp_path: Path):
    def reward(task: Task, index: int) -> float | None:
        return None if task.id == "t0" else float(index)

    world = World(tmp_path, steps=1, reward=reward)
    await world.loop.run()
    [step] = world.traces.steps
    assert outcomes(list(step.groups)) == [
        ("t1", "trained", ["trained", "trained"]),
        ("t2", "trained", ["trained", "trained"]),
        ("t0", "too_few_rewards", ["too_few_rewards"] * 2),
    ]
