"""An attempt that failed and was played again is in the books of its group, under its reason, and never trained."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_loop import World
from test_rollout_gateway import solve, stack
from test_rollout_gateway import tasks as calculator_tasks
from twins import TwinScorer, finished_trajectory

from agentrl.audit.books import Books
from agentrl.audit.trained_once import examine_groups, examine_settlements
from agentrl.engine.scripted import ScriptedEngine
from agentrl.rollout.config import RolloutConfig
from agentrl.store.memory import MemoryStore
from agentrl.train.config import StalenessConfig
from agentrl.train.producer import GroupProducer
from agentrl.types import Episode, Group, StopReason, Task


async def a_run(tmp_path: Path, *crashed: str, **settings: Any) -> World:
    """Two steps. The groups of the tasks `crashed` have a third session each, which crashed after it had sampled."""
    world = World(tmp_path, steps=2, **settings)
    run_group = world.rollouts.run_group

    async def with_a_crash(group_id: str, task: Task, **kwargs: Any) -> Group:
        group = await run_group(group_id, task, **kwargs)
        if task.id in crashed:
            session_id = f"{group_id}-crashed"
            world.store.save(
                finished_trajectory(session_id, task, group_id=group_id, mode="train", reward=None, version=0)
            )
            group.retried = [Episode(session_id=session_id, task=task, stop_reason=StopReason.ENV_CRASH, reward=None)]
        return group

    world.rollouts.run_group = with_a_crash  # type: ignore[method-assign, assignment]
    await world.loop.run()
    return world


def audited(store: MemoryStore) -> list[str]:
    books = Books(
        settlements=list(store.settlements()),
        groups={group.group_id: group for group in store.groups()},
        complete=True,
        max_lag=1,
    )
    for trajectory in store.iterate():
        books.add(trajectory)
    return [finding.detail for examine in (examine_settlements, examine_groups) for finding in examine(books).findings]


async def test_it_is_settled_as_retried_while_its_group_is_trained(tmp_path: Path) -> None:
    world = await a_run(tmp_path, "t0")
    settled = {s.session_id: (s.outcome, s.tokens) for s in world.store.settlements()}
    assert settled["000000-t0-crashed"] == ("retried", 0)
    assert settled["000000-t0-1"] == ("trained", 3)
    trained = {row.session_id for batch in world.trainer.batches for row in batch.rows}
    assert "000000-t0-1" in trained
    assert "000000-t0-crashed" not in trained
    assert audited(world.store) == []


async def test_its_tokens_are_counted_and_it_is_no_missing_reward(tmp_path: Path) -> None:
    """Three sampled tokens of the failed attempt; the step still has its 2 groups of 2 rewarded trajectories."""
    world = await a_run(tmp_path, "t0")
    step = world.recorder.steps[0]
    assert (step.dropped_tokens, step.trajectories, step.missing_rewards) == ({"retried": 3}, 4, 0)


async def test_failures_and_retries_are_counted_by_reason(tmp_path: Path) -> None:
    world = await a_run(tmp_path, "t0", "t1")
    summary = world.recorder.summary(ended="done")
    assert (summary.failed_episodes, summary.retried_episodes) == ({"env_crash": 2}, {"env_crash": 2})
    assert world.recorder.steps[-1].retried_episodes == {"env_crash": 2}


async def test_a_group_that_was_not_trained_is_named_after_its_last_attempts(tmp_path: Path) -> None:
    world = await a_run(tmp_path, "t0", skipped_steps=frozenset({1}))
    outcomes = {group.task.id: group.outcome for group in world.store.groups()}
    assert outcomes["t0"] == "step_skipped"
    assert {s.outcome for s in world.store.settlements() if s.session_id == "000000-t0-crashed"} == {"retried"}


@pytest.mark.parametrize("untrained", [{"half_skipped": frozenset({1})}, {"warmup_steps": 1}])
async def test_the_audit_finds_nothing_where_updates_were_skipped_or_warmed_up_the_critic(
    tmp_path: Path, untrained: dict[str, Any]
) -> None:
    world = await a_run(tmp_path, "t0", **untrained)
    assert {"step_skipped", "critic_warmup"} & {s.outcome for s in world.store.settlements()}
    assert audited(world.store) == []


async def test_a_group_that_is_dropped_or_left_at_the_end_closes_the_books_of_its_failed_attempts(
    tmp_path: Path,
) -> None:
    """t0 has no reward and is dropped; the groups that the run's end leaves over are t5 and t6."""
    world = await a_run(
        tmp_path, "t0", "t5", "t6", reward=lambda task, index: None if task.id == "t0" else float(index)
    )
    settled = {s.session_id: s.outcome for s in world.store.settlements()}
    assert settled["000000-t0-crashed"] == "retried"
    assert settled["000000-t0-0"] == "too_few_rewards"
    assert {group.outcome for group in world.store.groups()} == {"trained", "too_few_rewards", "run_ended"}
    assert audited(world.store) == []


async def test_a_run_whose_every_group_has_a_crash_trains_all_of_them_and_its_books_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real workers, processes and gateway, a scripted engine. The first step that is taken for a task crashes, so each
    group of 2 has 3 sessions, of which 2 are trained; both solve the task, so there is no advantage, and all count."""
    monkeypatch.setenv("AGENTRL_TEST_CRASHED", str(tmp_path / "mark"))
    tasks = (msgspec.structs.replace(t, env_id="hostile_envs:CrashingCalculator") for t in calculator_tasks(20))
    config = RolloutConfig(group_size=2, env_timeout_s=60.0)
    async with ScriptedEngine(solve) as engine, stack(engine, config) as (worker, store):
        world = World(tmp_path, steps=2)
        world.producer = world.loop.producer = GroupProducer(
            tasks=tasks,
            rollouts=worker,
            scorer=TwinScorer(),
            store=store,
            loop=world.loop.config,
            staleness=StalenessConfig(max_lag=10),
            group_size=2,
        )
        world.loop.staleness = StalenessConfig(max_lag=10)
        await world.loop.run()
        trained = [group for group in store.groups() if group.outcome == "trained"]
        outcomes = Counter(s.outcome for s in store.settlements() if s.step in (1, 2) and s.outcome != "run_ended")
        assert len(trained) == 4
        assert outcomes == {"trained": 8, "retried": 4}
        assert [step.missing_rewards for step in world.recorder.steps] == [0, 0]
        assert world.recorder.steps[-1].retried_episodes["env_crash"] >= 4
        assert world.recorder.steps[-1].retried_episodes == world.recorder.steps[-1].failed_episodes
        assert audited(store) == []
