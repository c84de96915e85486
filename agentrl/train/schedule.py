"""Which groups are under way, and which of them a step trains. Pure: no clock, no I/O, no event loop.

A group is *open* from its admission until the weights that it helped to train are published, or until it is dropped; it
is *ready* once it is whole and scored, and *accepted* once a step has taken it. At most `Rules.limit` are open, so
groups that are trained in the order of their admission are never more than K versions old when they are. What else
there is to the orders: docs/decisions/0027-finished-groups-first.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import Struct

from agentrl.store.base import GroupRecord
from agentrl.train.config import LoopConfig, StalenessConfig
from agentrl.train.task_source import TaskSource
from agentrl.types import Task

Order = Literal["finished", "due", "admitted"]


@dataclass(frozen=True)
class Rules:
    """What the configuration says. `max_lag` is K."""

    max_lag: int
    groups_per_step: int
    steps: int
    order: Order = "finished"
    max_groups: int | None = None
    cut_tail: float = 1.0
    requeue_stale: bool = False

    @classmethod
    def of(cls, loop: LoopConfig, staleness: StalenessConfig) -> Rules:
        return cls(
            max_lag=staleness.max_lag,
            groups_per_step=loop.groups_per_step,
            steps=loop.steps,
            order=loop.order,
            max_groups=loop.max_groups,
            cut_tail=loop.cut_tail,
            requeue_stale=staleness.policy == "requeue",
        )

    @property
    def limit(self) -> int:
        """Groups that may be open."""
        by_staleness = (self.max_lag + 1) * self.groups_per_step
        return by_staleness if self.max_groups is None else min(by_staleness, self.max_groups)

    def suffices(self, accepted: int, wanted: int) -> bool:
        """Whether a step may go on without the rest of its groups."""
        return accepted >= max(1, math.ceil(self.cut_tail * wanted - 1e-9)) if wanted else True


class OpenGroup(Struct, frozen=True):
    """One admitted group. Made by the schedule; the producer plays it."""

    number: int  # of its admission: groups are counted from 0
    group_id: str
    task: Task
    admitted_at: int  # version


class Schedule:
    """The books of what is open. Methods raise ValueError for what the caller may not do."""

    def __init__(self, rules: Rules, tasks: TaskSource) -> None:
        self.rules = rules
        self.failed_in_a_row = 0  # groups dropped for a failure since the last one that could be trained
        self.replaced = 0  # groups without signal that this step has had replaced
        self._tasks = tasks
        self._version = 0
        self._next_number = 0
        self._requeued: deque[Task] = deque()
        self._open: dict[str, OpenGroup] = {}
        self._ready: set[str] = set()
        self._accepted: set[str] = set()

    @property
    def version(self) -> int:
        """The one that is being trained from."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._version = version
        self.replaced = 0

    @property
    def capacity(self) -> int:
        """Groups that may be admitted now. Negative after a run was taken up again with tighter bounds."""
        return self.rules.limit - len(self._open)

    @property
    def open_groups(self) -> list[OpenGroup]:
        return list(self._open.values())

    def admit(self) -> OpenGroup | None:
        """The next group, from now on open; None when none may be, or there is no task."""
        if self.capacity <= 0 or self._version >= self.rules.steps:
            return None
        task = self._requeued.popleft() if self._requeued else self._tasks.draw()
        if task is None:
            return None
        number, self._next_number = self._next_number, self._next_number + 1
        group = OpenGroup(number, f"{number:06d}-{task.id}", task, self._version)
        self._open[group.group_id] = group
        return group

    def adopt(self, records: Iterable[GroupRecord]) -> list[OpenGroup]:
        """Groups that another driver admitted and did not close: open, in the order of their numbers.

        Restore its position first, or numbers are given twice.
        """
        adopted = sorted((_adopted(record) for record in records), key=lambda group: group.number)
        for group in adopted:
            if group.group_id in self._open:
                raise ValueError(f"group {group.group_id} is open already")
            if group.number >= self._next_number:
                raise ValueError(
                    f"group {group.group_id} is past the position, where group {self._next_number} is next"
                )
            self._open[group.group_id] = group
        return adopted

    def finish(self, group_id: str) -> None:
        """It is whole and scored."""
        if group_id not in self._open or group_id in self._ready or group_id in self._accepted:
            raise ValueError(f"group {group_id} is not under way")
        self._ready.add(group_id)

    def pick(self, wanted: int) -> OpenGroup | None:
        """Of the ready ones the next that the step may take, which wants that many more; None: wait.

        What is picked stays ready until it is accepted or dropped.
        """
        waiting = sorted(
            (group for name, group in self._open.items() if name not in self._accepted), key=lambda group: group.number
        )
        oldest = next((group for group in waiting if group.group_id in self._ready), None)
        if oldest is None or self.rules.order == "finished":
            return oldest
        if self.rules.order == "admitted":
            return oldest if oldest is waiting[0] else None
        return oldest if self._leaves_time(oldest, waiting, wanted) else None

    def accept(self, group_id: str) -> None:
        """The step trains it."""
        self._take(group_id)
        self._accepted.add(group_id)
        self.failed_in_a_row = 0

    def drop(self, group_id: str, *, stale: bool = False, replaced: bool = False) -> None:
        """A ready group that is not trained: for its age, to be replaced by one with signal, or else for a failure."""
        self._take(group_id)
        group = self._open.pop(group_id)
        if stale:
            if self.rules.requeue_stale:
                self._requeued.append(group.task)
        elif replaced:
            self.failed_in_a_row = 0
            self.replaced += 1
        else:
            self.failed_in_a_row += 1

    def settle(self, group_id: str) -> OpenGroup:
        """The weights that it helped to train are published (or were, by another driver); or the run is over."""
        if group_id not in self._open:
            raise ValueError(f"group {group_id} is not open: settled twice, or never admitted")
        self._ready.discard(group_id)
        self._accepted.discard(group_id)
        return self._open.pop(group_id)

    def position(self) -> dict[str, Any]:
        """All that another driver needs, with the open groups, to go on as this one would: JSON."""
        return {
            "version": self._version,
            "next_group": self._next_number,
            "tasks": self._tasks.state(),
            "requeued": [msgspec.to_builtins(task) for task in self._requeued],
            "outstanding": [group.group_id for group in self._open.values()],
            "failed_in_a_row": self.failed_in_a_row,
            "replaced": self.replaced,
        }

    def restore(self, position: Mapping[str, Any]) -> None:
        """Before anything else. The open groups come by `adopt`."""
        self._version = int(position["version"])
        self._next_number = int(position["next_group"])
        self._tasks.restore(position["tasks"])
        self._requeued = deque(msgspec.convert(task, Task) for task in position["requeued"])
        self.failed_in_a_row = int(position["failed_in_a_row"])
        self.replaced = int(position["replaced"])

    def _take(self, group_id: str) -> None:
        if group_id not in self._ready:
            raise ValueError(f"group {group_id} is not ready")
        self._ready.remove(group_id)

    def _leaves_time(self, picked: OpenGroup, waiting: list[OpenGroup], wanted: int) -> bool:
        """Whether each group that would be left can still be trained before it is too old, whenever it is whole.

        Up to the step from version `v + n` there are `wanted - 1 + n * groups_per_step` places, so no more groups may
        be due by then. The one that is due first is always taken.
        """
        due = sorted(self._due(group) for group in waiting if group is not picked)
        if not due or self._due(picked) <= due[0]:
            return True
        per_step = self.rules.groups_per_step
        return all(place <= wanted - 1 + (by - self._version) * per_step for place, by in enumerate(due, start=1))

    def _due(self, group: OpenGroup) -> int:
        """The last version that it can be trained from; one that is too old already is due now."""
        return max(self._version, group.admitted_at + self.rules.max_lag)


def _adopted(record: GroupRecord) -> OpenGroup:
    number, _, _ = record.group_id.partition("-")
    if not number.isdecimal():
        raise ValueError(f"group {record.group_id!r} is none of a run's: its id does not begin with a number")
    return OpenGroup(int(number), record.group_id, record.task, record.admitted_at_version)
