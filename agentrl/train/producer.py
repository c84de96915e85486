"""Keeps groups under way while the trainer steps, and hands the oldest whole ones to it."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Iterator
from types import TracebackType

from agentrl.errors import RunError
from agentrl.store.base import TRAINED, Settlement, TrajectoryStore
from agentrl.train.batch import ScoredGroup, rejection
from agentrl.train.config import LoopConfig, StalenessConfig
from agentrl.train.ports import Rollouts, Scorer
from agentrl.train.staleness import AdmissionGate
from agentrl.types import Group, Task


class GroupProducer:
    """Admits tasks as the staleness gate allows, runs them as groups, scores them, and queues them by age.

    Use as an async context manager: leaving it cancels what is under way. An exception of a background group is
    raised by the next `take`.
    """

    def __init__(
        self,
        *,
        tasks: Iterator[Task],
        rollouts: Rollouts,
        scorer: Scorer,
        store: TrajectoryStore,
        loop: LoopConfig,
        staleness: StalenessConfig,
        group_size: int,
    ) -> None:
        self.version = 0
        self.dropped_groups: Counter[str] = Counter()
        self._tasks = tasks
        self._rollouts = rollouts
        self._scorer = scorer
        self._store = store
        self._loop = loop
        self._staleness = staleness
        self._group_size = group_size
        self._gate = AdmissionGate(max_lag=staleness.max_lag, groups_per_step=loop.groups_per_step)
        self._numbers = itertools.count()
        self._requeued: deque[Task] = deque()
        # Holds at most the gate's limit: only admitted groups are put in.
        self._ready: asyncio.PriorityQueue[tuple[int, ScoredGroup | Exception]] = asyncio.PriorityQueue()
        self._running: set[asyncio.Task[None]] = set()
        self._failed_in_a_row = 0

    async def __aenter__(self) -> GroupProducer:
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
    def under_way(self) -> int:
        """Groups whose episodes are not all done."""
        return len(self._running)

    async def take(self, count: int) -> list[ScoredGroup]:
        """The next `count` groups that can be trained from the current version, oldest first.

        Raises RunError when none comes within the time limit, or when too many in a row failed.
        """
        accepted: list[ScoredGroup] = []
        while len(accepted) < count:
            scored = await self._next()
            reason = rejection(scored, version=self.version, staleness=self._staleness)
            if reason is None:
                self._failed_in_a_row = 0
                accepted.append(scored)
            else:
                self._drop(scored, reason)
        return accepted

    def settle(self, settlements: dict[str, list[Settlement]], *, step: int) -> None:
        """Closes the books of trained groups and admits as many new ones."""
        for group_id, of_group in settlements.items():
            outcomes = {settlement.outcome for settlement in of_group}
            outcome = TRAINED if TRAINED in outcomes else min(outcomes)
            if outcome != TRAINED:
                self.dropped_groups[outcome] += 1
            self._store.settle(group_id, outcome, step, of_group)
            self._gate.settle(group_id)
        self._admit()

    def _close_what_is_left(self) -> None:
        """The run is over, so nobody will train these. (After a failure they stay open, for a resume.)"""
        for group_id in self._gate.outstanding:
            settlements = [
                Settlement(session_id=trajectory.session_id, outcome="run_ended", step=self.version)
                for trajectory in self._store.iterate(group_id=group_id)
            ]
            self._store.settle(group_id, "run_ended", self.version, settlements)
            self.dropped_groups["run_ended"] += 1

    def _admit(self) -> None:
        while self._gate.capacity > 0 and self.version < self._loop.steps:
            task = self._requeued.popleft() if self._requeued else next(self._tasks, None)
            if task is None:
                if not self._running and self._ready.empty():
                    raise RunError("the environment has no tasks for the training split; give it at least one")
                return
            number = next(self._numbers)
            group_id = f"{number:06d}-{task.id}"
            self._gate.admit(group_id)
            self._store.admit(group_id, task, self.version)
            running = asyncio.create_task(self._run(number, group_id, task), name=f"group {group_id}")
            self._running.add(running)
            running.add_done_callback(self._running.discard)

    async def _run(self, number: int, group_id: str, task: Task) -> None:
        try:
            group = await self._rollouts.run_group(
                group_id, task, size=self._group_size, version=self.version, mode="train"
            )
            await self._scorer.score(group)
            scored = await asyncio.to_thread(self._load, group)
        except Exception as error:
            self._ready.put_nowait((number, error))
        else:
            self._ready.put_nowait((number, scored))

    def _load(self, group: Group) -> ScoredGroup:
        """The episode's reward is the last word: a failure that came after the environment's reward leaves none."""
        rewards = {episode.session_id: episode.reward for episode in group.episodes}
        trajectories = list(self._store.iterate(group_id=group.group_id))
        for trajectory in trajectories:
            trajectory.reward = rewards.get(trajectory.session_id)
        return ScoredGroup(group, trajectories)

    async def _next(self) -> ScoredGroup:
        limit = self._loop.group_timeout_s
        try:
            _, item = await asyncio.wait_for(self._ready.get(), limit)
        except TimeoutError:
            raise RunError(
                f"no group finished within {limit:g} s ({self.under_way} under way); see logs/rollout.log, "
                "lower the episode limits in [rollout], or raise loop.group_timeout_s"
            ) from None
        if isinstance(item, Exception):
            raise item
        return item

    def _drop(self, scored: ScoredGroup, reason: str) -> None:
        group = scored.group
        self.dropped_groups[reason] += 1
        settlements = [
            Settlement(session_id=trajectory.session_id, outcome=reason, step=self.version + 1)
            for trajectory in scored.trajectories
        ]
        self._store.settle(group.group_id, reason, self.version + 1, settlements)
        self._gate.settle(group.group_id)
        if reason == "stale":
            if self._staleness.policy == "requeue":
                self._requeued.append(group.task)
        else:
            self._failed_in_a_row += 1
            self._stop_when_everything_fails(group, reason)
        self._admit()

    def _stop_when_everything_fails(self, group: Group, reason: str) -> None:
        if self._failed_in_a_row < self._loop.max_failed_groups:
            return
        errors = [episode.error for episode in group.episodes if episode.error]
        because = (
            f"; the last group's first error: {errors[0]}. The tracebacks are in logs/rollout.log"
            if errors
            else "; no episode failed: the environment's `score` gives no reward, or a reward service is missing"
        )
        raise RunError(
            f"{self._failed_in_a_row} groups in a row could not be trained ({reason}){because}. "
            "Run `agentrl env play` to see one episode"
        )
