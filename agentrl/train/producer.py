"""Plays what the schedule admits, while the trainer steps, and hands it the groups that a step trains.

The thin side of `agentrl.train.schedule`: rollouts, rewards, the store and waiting. Every admission and settlement is
written with the position that it leads to, so another driver goes on from the store alone.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec

from agentrl.errors import RunError
from agentrl.store.base import TRAINED, GroupRecord, Settlement, TrajectoryStore
from agentrl.train import books
from agentrl.train.batch import NO_SIGNAL, ScoredGroup, rejection
from agentrl.train.config import LoopConfig, StalenessConfig
from agentrl.train.ports import Rollouts, Scorer
from agentrl.train.refill import Refill
from agentrl.train.schedule import OpenGroup, Rules, Schedule
from agentrl.train.stored import finished_attempts, scored_group
from agentrl.train.task_source import IteratedTasks, TaskSource
from agentrl.types import Group, Task


class GroupProducer:
    """Keeps as many groups under way as the schedule allows.

    Use as an async context manager: leaving it cancels what is under way. An exception of a background group is
    raised by the next `take`. Who goes on with another driver's run calls `restore` and `adopt` before entering.
    """

    def __init__(
        self,
        *,
        tasks: TaskSource | Iterator[Task],
        rollouts: Rollouts,
        scorer: Scorer,
        store: TrajectoryStore,
        loop: LoopConfig,
        staleness: StalenessConfig,
        group_size: int,
        refill: Refill | None = None,
        success_reward: float = 1.0,
        given_up: Callable[[ScoredGroup, str], None] = lambda scored, reason: None,
    ) -> None:
        """`success_reward`: what makes an attempt a success, in the eyes of a curriculum.

        `given_up` hears of every group that no step will train, and why.
        """
        self.dropped_groups: Counter[str] = Counter()
        self.failed_episodes: Counter[str] = Counter()  # by stop reason, the retried ones too
        self.retried_episodes: Counter[str] = Counter()  # of these, by stop reason
        self.incomplete_groups: Counter[str] = Counter()  # with attempts that were `late`, or that `failed`
        self.cut_episodes = 0  # that their groups did not wait for
        self.refilled_groups = 0  # without signal, replaced since the run began
        self.concurrency: dict[str, float] = {}  # of the rollout worker that was heard last
        self.cut_groups = 0  # that steps did not wait for since the run began, so that they were smaller
        self._tasks = IteratedTasks(tasks) if isinstance(tasks, Iterator) else tasks
        self._schedule = Schedule(Rules.of(loop, staleness), self._tasks)
        self._rollouts = rollouts
        self._scorer = scorer
        self._store = store
        self._loop = loop
        self._staleness = staleness
        self._group_size = group_size
        self._refill = refill
        self._success_reward = success_reward
        self._given_up = given_up
        self._entered = False
        self._adopted: list[OpenGroup] = []  # to be played on entering
        self._scored: dict[str, ScoredGroup] = {}  # of the schedule's ready groups
        self._successes: dict[str, list[bool]] = {}  # of the attempts of accepted groups
        self._running: set[asyncio.Task[None]] = set()
        self._error: Exception | None = None  # of a background group
        self._news = asyncio.Event()  # a group is ready, or failed

    async def __aenter__(self) -> GroupProducer:
        self._entered = True
        for group in self._adopted:
            self._start(group, adopted=True)
        self._admit()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        if kind is None:
            await asyncio.to_thread(self._close_what_is_left)

    @property
    def version(self) -> int:
        """The one that is being trained from."""
        return self._schedule.version

    @version.setter
    def version(self, version: int) -> None:
        self._schedule.version = version

    @property
    def under_way(self) -> int:
        """Groups whose episodes are not all done."""
        return len(self._running)

    def task_stats(self) -> dict[str, dict[str, float]]:
        """Of each source of a mix, what was drawn and its present share."""
        return self._tasks.stats()

    def reward_stats(self) -> dict[str, dict[str, float]]:
        """What each part of the reward has done and cost since the start."""
        return self._scorer.stats()

    async def take(self, count: int) -> list[ScoredGroup]:
        """The next `count` groups that can be trained from the current version, in the schedule's order.

        Fewer where `loop.cut_tail` says that they suffice. Where groups without signal are replaced, and more than may
        be came, the others are among them.
        Raises RunError when none comes within the time limit, or when too many in a row failed.
        """
        accepted: list[ScoredGroup] = []
        while len(accepted) < count:
            if self._error is not None:
                raise self._error
            wanted = count - len(accepted)
            if (picked := self._schedule.pick(wanted)) is None:
                enough = self._schedule.rules.suffices(len(accepted), count)
                limit = self._loop.tail_patience_s if enough else self._loop.group_timeout_s
                if await self._another(wanted, limit):
                    continue
                if not enough:
                    raise self._no_group()
                self.cut_groups += wanted
                break
            if self._judge(picked):
                accepted.append(self._scored.pop(picked.group_id))
        return accepted

    def settle(self, settlements: Mapping[str, Sequence[Settlement]], *, step: int) -> None:
        """Closes the books of trained groups and admits as many new ones."""
        for group_id, of_group in settlements.items():
            if (outcome := books.outcome_of(of_group)) != TRAINED:
                self.dropped_groups[outcome] += 1
            group = self._schedule.settle(group_id)
            known = self._successes.pop(group_id) if group_id in self._successes else self._stored_successes(group_id)
            self._tasks.observe(group.task, known)
            self._store.settle(group_id, outcome, step, of_group, position=self._encoded_position())
        self._admit()

    def position(self) -> dict[str, Any]:
        """Where it stands between two steps, as JSON, for who goes on from here with the same store."""
        return self._schedule.position()

    def restore(self, position: Mapping[str, Any]) -> None:
        """Goes on from the position that another driver wrote, the store's last one or a checkpoint's."""
        self._schedule.restore(position)

    def adopt(self, groups: Sequence[GroupRecord], *, logged: Collection[str] = ()) -> None:
        """Groups that the driver of that position admitted and did not close.

        Their finished attempts are in the store and are kept, the missing ones are played, and they are queued as old
        as they are. Those in a `logged` batch are not: they wait for their settlement, which may come before entering.
        """
        self._adopted += [group for group in self._schedule.adopt(groups) if group.group_id not in logged]

    def _judge(self, group: OpenGroup) -> bool:
        """Whether the step takes it; else its books are closed, and others are admitted in its place."""
        scored = self._scored[group.group_id]
        reason = rejection(scored, version=self.version, staleness=self._staleness)
        replaceable = self._refill and self._schedule.replaced < self._refill.limit
        if reason is None and replaceable and self._refill and not self._refill.has_signal(scored):
            self.refilled_groups += 1
            reason = NO_SIGNAL
        if reason is not None:
            self._drop(group, reason)
            return False
        self._schedule.accept(group.group_id)
        self._successes[group.group_id] = scored.successes(self._success_reward)
        return True

    def _drop(self, group: OpenGroup, reason: str) -> None:
        scored = self._scored.pop(group.group_id)
        self.dropped_groups[reason] += 1
        self._given_up(scored, reason)
        self._schedule.drop(group.group_id, stale=reason == "stale", replaced=reason == NO_SIGNAL)
        self._tasks.observe(group.task, scored.successes(self._success_reward))
        step = self.version + 1
        settlements = books.dropped(scored, reason, step)
        self._store.settle(group.group_id, reason, step, settlements, position=self._encoded_position())
        if (failed := self._schedule.failed_in_a_row) >= self._loop.max_failed_groups:
            raise RunError(books.why_nothing_works(scored.group, reason, failed))
        self._admit()

    def _close_what_is_left(self) -> None:
        """The run is over, so nobody will train these. (After a failure they stay open, for a resume.)"""
        for group in self._schedule.open_groups:
            left = self._store.iterate(mode="train", group_id=group.group_id)
            settlements = books.run_ended(left, self.version)
            self._schedule.settle(group.group_id)
            position = self._encoded_position()
            self._store.settle(group.group_id, "run_ended", self.version, settlements, position=position)
            self.dropped_groups["run_ended"] += 1

    def _admit(self) -> None:
        if not self._entered:
            return
        while (group := self._schedule.admit()) is not None:
            self._store.admit(group.group_id, group.task, group.admitted_at, position=self._encoded_position())
            self._start(group)
        if not self._schedule.open_groups and self.version < self._loop.steps:
            raise RunError("the environment has no tasks for the training split; give it at least one")

    def _start(self, group: OpenGroup, *, adopted: bool = False) -> None:
        running = asyncio.create_task(self._run(group, adopted=adopted), name=f"group {group.group_id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)

    async def _run(self, group: OpenGroup, *, adopted: bool) -> None:
        admitted_at = time.time()
        try:
            have = await asyncio.to_thread(finished_attempts, self._store, group.group_id) if adopted else {}
            played = await self._rollouts.run_group(
                group.group_id, group.task, size=self._group_size, version=group.admitted_at, mode="train", have=have
            )
            played.admitted_at, played.played_at = admitted_at, time.time()
            self.concurrency = played.concurrency or self.concurrency
            self._count_failures(played)
            sampled_until = self.version
            await self._scorer.score(played, useful=lambda: self.version - sampled_until <= self._staleness.max_lag)
            played.scored_at = time.time()
            self._scored[group.group_id] = await asyncio.to_thread(scored_group, self._store, played)
        except Exception as error:
            self._error = self._error or error
        else:
            self._schedule.finish(group.group_id)
        self._news.set()

    def _count_failures(self, group: Group) -> None:
        self.cut_episodes += len(group.cut)
        if group.cut:
            self.incomplete_groups["late"] += 1
        elif not all(episode.stop_reason.by_policy for episode in group.attempts):
            self.incomplete_groups["failed"] += 1
        self.retried_episodes.update(str(episode.stop_reason) for episode in group.retried)
        self.failed_episodes.update(
            str(episode.stop_reason)
            for episode in (*group.retried, *group.attempts)
            if not episode.stop_reason.by_policy
        )

    def _stored_successes(self, group_id: str) -> list[bool]:
        """Of a group that another driver took."""
        rewards = (trajectory.reward for trajectory in self._store.iterate(mode="train", group_id=group_id))
        return [reward >= self._success_reward for reward in rewards if reward is not None]

    async def _another(self, wanted: int, limit_s: float) -> bool:
        """Waits until there is one to pick, or a background group failed; False when there is none in time."""
        try:
            async with asyncio.timeout(limit_s):
                while self._error is None and self._schedule.pick(wanted) is None:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _no_group(self) -> RunError:
        return RunError(
            f"no group finished within {self._loop.group_timeout_s:g} s ({self.under_way} under way); see "
            "logs/rollout.log, lower the episode limits in [rollout], or raise loop.group_timeout_s"
        )

    def _encoded_position(self) -> bytes:
        return msgspec.json.encode(self.position())
