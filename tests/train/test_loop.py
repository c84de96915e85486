"""The control loop with in-memory twins: asynchronous, bounded in staleness, and exact in its books."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from twins import KeptTraces, TwinEngines, TwinRollouts, TwinScorer, TwinTrainer, in_one_thread

from agentrl.errors import RunError
from agentrl.observe.recorder import Recorder
from agentrl.store.memory import MemoryStore
from agentrl.train.batch_log import MemoryBatchLog
from agentrl.train.config import AlgorithmConfig, CheckpointConfig, EvaluationConfig, LoopConfig, StalenessConfig
from agentrl.train.evaluate import Evaluator
from agentrl.train.evaluations import Evaluations
from agentrl.train.loop import TrainLoop
from agentrl.train.producer import GroupProducer
from agentrl.train.publish import GroupPublisher, Publisher
from agentrl.train.saver import CheckpointSaver
from agentrl.train.tracing import StepTracer
from agentrl.types import Batch, Group, StopReason, Task
from agentrl_trainers.algorithms.advantages.grpo import group_advantages


def task(number: int) -> Task:
    return Task(id=f"t{number}", env_id="e", seed=number)


class World:
    """A loop of two groups of two per step over twins, and everything a test wants to look at."""

    def __init__(
        self,
        tmp_path: Path,
        *,
        steps: int = 3,
        max_lag: int = 1,
        policy: str = "mask",
        on_step: Callable[[Batch], object] | None = None,
        group_timeout_s: float = 30.0,
        skipped_steps: frozenset[int] = frozenset(),
        half_skipped: frozenset[int] = frozenset(),
        warmup_steps: int = 0,
        tasks: Iterator[Task] | None = None,
        evaluation: EvaluationConfig | None = None,
        own: Publisher | None = None,
        beside: bool = True,
        **rollouts: object,
    ) -> None:
        in_one_thread()
        self.store = MemoryStore()
        self.engines = TwinEngines(self.store)
        self.rollouts = TwinRollouts(self.store, self.engines, **rollouts)  # type: ignore[arg-type]
        self.trainer = TwinTrainer(
            tmp_path,
            on_step=on_step,
            skipped_steps=skipped_steps,
            half_skipped=half_skipped,
            warmup_steps=warmup_steps,
        )
        self.recorder = Recorder([])
        self.traces = KeptTraces()
        tracer = StepTracer(self.traces)
        self.progress: list[tuple[str, int, int]] = []
        self.files = tmp_path
        config = LoopConfig(steps=steps, groups_per_step=2, max_failed_groups=3, group_timeout_s=group_timeout_s)
        staleness = StalenessConfig(max_lag=max_lag, policy=policy)
        evaluation = evaluation or EvaluationConfig(tasks=3)
        saver = CheckpointSaver(tmp_path / "checkpoints", CheckpointConfig(every=2), self.trainer)
        self.producer = GroupProducer(
            tasks=(task(number) for number in itertools.count()) if tasks is None else tasks,
            rollouts=self.rollouts,
            scorer=TwinScorer(),
            store=self.store,
            loop=config,
            staleness=staleness,
            group_size=2,
            given_up=tracer.given_up,
        )
        self.loop = TrainLoop(
            config=config,
            staleness=staleness,
            algorithm=AlgorithmConfig(),
            evaluation=evaluation,
            log=MemoryBatchLog(),
            saver=saver,
            producer=self.producer,
            evaluations=Evaluations(
                Evaluator(
                    tasks=[task(1000 + number) for number in range(evaluation.tasks)],
                    rollouts=self.rollouts,
                    scorer=TwinScorer(),
                    config=evaluation,
                    progress=lambda what, done, total: self.progress.append((what, done, total)),
                ),
                evaluation,
                self.recorder,
                own=own,
                beside=beside,
                checkpoints=saver.checkpoints,
                traces=self.traces,
                trajectories=lambda group_id: self.store.iterate(mode="eval", group_id=group_id),
            ),
            trainer=self.trainer,
            publisher=GroupPublisher(trainer=self.trainer, engines=self.engines),
            estimate=group_advantages,
            recorder=self.recorder,
            tracer=tracer,
        )


async def test_a_run_trains_every_step_publishes_every_version_and_evaluates_both_ends(tmp_path: Path):
    world = World(tmp_path, steps=3)
    await world.loop.run()
    assert [batch.version for batch in world.trainer.batches] == [0, 1, 2]
    assert [swap.version for swap in world.store.swaps()] == [1, 2, 3]
    assert world.trainer.exports == world.trainer.saves == [2, 3]
    assert [(record.version, record.success) for record in world.recorder.evaluations] == [(0, 0.0), (3, 0.0)]
    assert [record.success for record in world.recorder.steps] == [0.5, 0.5, 0.5]
    assert world.progress[:3] == [("evaluating version 0", done, 3) for done in (1, 2, 3)]


async def test_a_checkpoint_holds_where_the_run_stood_and_how_good_it_was(tmp_path: Path):
    """K = 1, so 4 groups are outstanding: 4 tasks were drawn before step 1 and 2 more after each of two steps."""
    world = World(tmp_path, steps=3)
    await world.loop.run()
    held = world.loop.saver.checkpoints
    run = held.run(2)
    assert run.pop("record")["step"] == 2, "what metrics.jsonl is to say of the step, should it not come to that"
    assert run == {
        "version": 2,
        "next_group": 8,
        "tasks": {"drawn": 8},
        "requeued": [],
        "outstanding": ["000004-t4", "000005-t5", "000006-t6", "000007-t7"],
        "failed_in_a_row": 0,
        "replaced": 0,
    }
    assert held.run(3)["outstanding"] == ["000006-t6", "000007-t7"]
    assert held.whole()[2].scores == {"reward": 0.5, "success": 0.5}
    assert [bool(record.checkpoint) for record in world.recorder.steps] == [False, True, True]
    assert "checkpoint" in world.recorder.steps[1].phases


async def test_rollouts_go_on_while_the_trainer_steps(tmp_path: Path):
    """The step ends only after a group that it does not train has finished sampling: a barrier would hang here."""
    finished_during_step: list[int] = []

    async def wait_for_more(batch: Batch) -> None:
        trained = {row.session_id.rsplit("-", 1)[0] for row in batch.rows}
        async with asyncio.timeout(10):
            while (group_id := await world.rollouts.finished.get()) in trained or group_id.startswith("eval"):
                pass
        finished_during_step.append(batch.version)

    world = World(tmp_path, steps=1, max_lag=1, on_step=wait_for_more)
    await world.loop.run()
    assert finished_during_step == [0]


@pytest.mark.parametrize("max_lag", [0, 1, 2])
async def test_no_step_trains_on_tokens_past_the_bound_even_when_one_group_is_very_late(tmp_path: Path, max_lag: int):
    late = asyncio.Event()

    def release_late(batch: Batch) -> None:
        if batch.version == 4:
            late.set()

    world = World(
        tmp_path,
        steps=8,
        max_lag=max_lag,
        on_step=release_late,
        hold=lambda t: late if max_lag and t.id == "t1" else None,
    )
    await world.loop.run()
    assert max(lag for record in world.recorder.steps for lag in record.staleness) <= max_lag
    if max_lag:
        assert world.producer.dropped_groups["stale"] == 1
        assert {g.outcome for g in world.store.groups() if g.task.id == "t1"} == {"stale"}


async def test_with_lag_zero_every_token_is_on_policy(tmp_path: Path):
    world = World(tmp_path, steps=4, max_lag=0)
    await world.loop.run()
    assert [record.staleness for record in world.recorder.steps] == [{0: 12}] * 4  # 2 groups x 2 episodes x 3 tokens


async def test_a_stale_task_is_done_again_when_the_policy_says_so(tmp_path: Path):
    late = asyncio.Event()
    held: list[str] = []

    def hold_once(t: Task) -> asyncio.Event | None:
        if t.id != "t1" or held:
            return None
        held.append(t.id)
        return late

    world = World(
        tmp_path,
        steps=8,
        policy="requeue",
        on_step=lambda batch: late.set() if batch.version == 4 else None,
        hold=hold_once,
    )
    await world.loop.run()
    assert [g.outcome for g in world.store.groups() if g.task.id == "t1"] == ["stale", "trained"]


async def test_every_admitted_group_is_closed_once_and_every_trained_one_has_its_step(tmp_path: Path):
    world = World(tmp_path, steps=4)
    await world.loop.run()
    groups = list(world.store.groups())
    assert Counter(g.step for g in groups if g.outcome == "trained") == {1: 2, 2: 2, 3: 2, 4: 2}
    assert not [g for g in groups if g.outcome is None]
    settled = Counter(s.session_id for s in world.store.settlements())
    assert set(settled.values()) == {1}


async def test_weight_files_are_gone_after_each_swap(tmp_path: Path):
    world = World(tmp_path, steps=2)
    await world.loop.run()
    assert [[g.index for g in swap.loaded] for swap in world.engines.swaps] == [[0, 1], [0, 1]]
    assert list(world.files.glob("v*-*")) == []


async def test_a_failing_rollout_worker_ends_the_run_and_cancels_the_other_groups(tmp_path: Path):
    forever = asyncio.Event()

    def hold(t: Task) -> asyncio.Event | None:
        if t.id == "t0":
            raise RuntimeError("the worker died")
        return forever if t.seed < 1000 else None

    world = World(tmp_path, hold=hold)
    with pytest.raises(RuntimeError, match="the worker died"):
        await world.loop.run()
    assert len(world.rollouts.cancelled) == 3
    assert all(g.outcome is None for g in world.store.groups()), "what a resume has to do again stays open"


async def test_an_environment_that_always_fails_ends_the_run_with_its_error(tmp_path: Path):
    world = World(
        tmp_path, reward=lambda t, index: 1.0 if t.seed >= 1000 else None, error="reset raised ValueError: no board"
    )
    with pytest.raises(RunError, match=r"3 groups in a row .*too_few_rewards.*reset raised ValueError: no board"):
        await world.loop.run()
    assert world.trainer.batches == []


async def test_an_evaluation_without_any_reward_names_the_first_error(tmp_path: Path):
    world = World(tmp_path, reward=lambda t, index: None, error="reset raised ValueError: no board")
    with pytest.raises(RunError, match=r"none of 3 evaluation episodes got a reward.*no board"):
        await world.loop.run()


async def test_a_group_that_never_ends_is_named_after_the_time_limit(tmp_path: Path):
    forever = asyncio.Event()
    world = World(tmp_path, group_timeout_s=0.05, hold=lambda t: forever if t.seed < 1000 else None)
    with pytest.raises(RunError, match=r"no group finished within 0.05 s \(4 under way\)"):
        await world.loop.run()


async def test_an_environment_without_tasks_is_an_error_not_a_hang(tmp_path: Path):
    world = World(tmp_path, tasks=iter(()))
    with pytest.raises(RunError, match="no tasks"):
        await world.loop.run()


async def test_what_was_in_a_skipped_step_is_not_called_trained(tmp_path: Path):
    """A step whose gradient was not finite moves no weight: its trajectories are dropped under that reason."""
    world = World(tmp_path, steps=3, skipped_steps=frozenset({2}))
    await world.loop.run()
    outcomes = {s.outcome for s in world.store.settlements() if s.step == 2 and s.outcome != "run_ended"}
    assert outcomes == {"step_skipped"}
    assert {g.outcome for g in world.store.groups() if g.step == 2} == {"step_skipped"}
    assert world.recorder.steps[1].dropped_tokens == {"step_skipped": 12}  # 2 groups x 2 episodes x 3 tokens
    assert world.recorder.steps[1].staleness == {}
    assert world.recorder.steps[2].dropped_groups["step_skipped"] == 2


async def test_of_a_step_of_which_some_updates_were_skipped_only_what_had_gradient_is_called_trained(tmp_path: Path):
    """Step 1 has t0's and t1's two episodes of 3 tokens; the twin trains the first of t0 and skips the other three."""
    world = World(tmp_path, steps=2, half_skipped=frozenset({1}))
    await world.loop.run()
    settled = {s.session_id: (s.outcome, s.tokens) for s in world.store.settlements() if s.step == 1}
    assert settled == {
        "000000-t0-0": ("trained", 3),
        "000000-t0-1": ("step_skipped", 0),
        "000001-t1-0": ("step_skipped", 0),
        "000001-t1-1": ("step_skipped", 0),
    }
    assert {g.task.id: g.outcome for g in world.store.groups() if g.step == 1} == {
        "t0": "trained",
        "t1": "step_skipped",
    }
    [first, second] = world.recorder.steps
    assert (first.trained_tokens, first.staleness, first.dropped_tokens) == (3, {0: 3}, {"step_skipped": 9})
    assert (second.trained_tokens, second.dropped_tokens) == (12, {})


async def test_what_only_warmed_up_the_critic_is_not_called_trained(tmp_path: Path):
    world = World(tmp_path, steps=2, warmup_steps=1)
    await world.loop.run()
    assert {(s.outcome, s.tokens) for s in world.store.settlements() if s.step == 1} == {("critic_warmup", 0)}
    assert world.recorder.steps[0].dropped_tokens == {"critic_warmup": 12}
    assert [record.trained_tokens for record in world.recorder.steps] == [0, 12]


async def test_a_version_without_a_batch_is_counted_by_the_next_batchs_version(tmp_path: Path):
    """t0 and t1, the first step's, have no signal: the trainer first hears of version 1, where its schedule stands."""
    world = World(tmp_path, steps=2, reward=lambda t, index: 1.0 if t.seed < 2 else float(index))
    world.loop.algorithm = AlgorithmConfig(zero_variance="drop")
    await world.loop.run()
    assert [batch.version for batch in world.trainer.batches] == [1]
    assert [swap.version for swap in world.store.swaps()] == [1, 2]


async def test_a_step_without_any_signal_moves_no_weight_and_the_run_goes_on(tmp_path: Path):
    """A policy that solves everything leaves nothing to learn; with zero_variance = "drop" a batch can be empty."""
    world = World(tmp_path, steps=2, reward=lambda t, index: 1.0)
    world.loop.algorithm = AlgorithmConfig(zero_variance="drop")
    await world.loop.run()
    assert world.trainer.batches == []
    assert [record.dropped_groups for record in world.recorder.steps] == [{"no_signal": 2}, {"no_signal": 4}]


async def test_a_group_without_signal_is_named_so_though_one_of_its_attempts_had_no_reward(tmp_path: Path):
    world = World(tmp_path, steps=1, reward=lambda t, index: None if index == 3 else 1.0)
    world.producer._group_size = 4
    world.loop.algorithm = AlgorithmConfig(zero_variance="drop")
    await world.loop.run()
    assert {group.outcome for group in world.store.groups() if group.step == 1} == {"no_signal", "run_ended"}
    assert world.recorder.steps[0].dropped_groups == {"no_signal": 2}
    assert world.recorder.steps[0].dropped_tokens == {"no_signal": 18, "missing_reward": 6}  # 2 groups x 3 and 1


async def test_groups_still_under_way_when_the_run_ends_are_counted(tmp_path: Path):
    """With K = 1, four groups are under way and two are trained in the last step; no new ones are admitted after it."""
    world = World(tmp_path, steps=2, max_lag=1)
    await world.loop.run()
    assert world.recorder.summary(ended="done").dropped == {"groups.run_ended": 2}


async def test_groups_dropped_before_a_failure_are_in_the_summary(tmp_path: Path):
    world = World(tmp_path, reward=lambda t, index: 1.0 if t.seed >= 1000 else None)
    with pytest.raises(RunError):
        await world.loop.run()
    assert world.recorder.summary(ended="failed").dropped == {"groups.too_few_rewards": 3}


async def test_a_failure_after_the_environments_reward_leaves_no_reward_to_train_on(tmp_path: Path):
    """Invariant 6: the store may hold the environment's reward although the episode failed afterwards."""
    world = World(tmp_path, steps=1)
    run_group = world.rollouts.run_group

    async def lose_finish(group_id: str, *args: object, **kwargs: object) -> Group:
        group = await run_group(group_id, *args, **kwargs)  # type: ignore[arg-type]
        if group_id.startswith("000000"):
            group.episodes[0].stop_reason, group.episodes[0].reward = StopReason.POLICY_ERROR, None
        return group

    world.rollouts.run_group = lose_finish  # type: ignore[method-assign]
    await world.loop.run()
    assert "000000-t0-0" not in {row.session_id for batch in world.trainer.batches for row in batch.rows}
    assert {s.outcome for s in world.store.settlements() if s.session_id == "000000-t0-0"} == {"too_few_rewards"}
