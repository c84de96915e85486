"""What the orders of groups cost and gain, simulated: `python -m bench.schedule`.

Groups take log-normally distributed time (median 1, sigma 1) on engines that never fill up, a step takes 0.3, and a
group samples its tokens evenly over its life. So rollouts are the slower side, with the tail of long agent episodes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import dataclass, field

from agentrl.train.schedule import OpenGroup, Order, Rules, Schedule
from agentrl.train.task_source import IteratedTasks
from agentrl.types import Task

GROUPS_PER_STEP = 8
STEPS = 400
STEP_TIME = 0.3
SIGMA = 1.0


@dataclass
class Simulation:
    rules: Rules
    seed: int = 0
    now: float = 0.0
    waited: float = 0.0
    sampled: float = 0.0  # token-time of the groups that were trained
    masked: float = 0.0  # of it, what was too old by then
    published: list[float] = field(default_factory=lambda: [0.0])  # when each version was
    ends: list[tuple[float, str]] = field(default_factory=list)  # a heap
    lives: dict[str, tuple[float, float]] = field(default_factory=dict)

    def run(self) -> Simulation:
        chance = random.Random(self.seed)
        self.schedule = Schedule(self.rules, IteratedTasks(Task(id=str(n)) for n in itertools.count()))
        self._admit(chance)
        for version in range(self.rules.steps):
            accepted = [self._next(version, left) for left in range(self.rules.groups_per_step, 0, -1)]
            self._pass_time(self.now + STEP_TIME)
            self.schedule.version = version + 1
            self.published.append(self.now)
            for group in accepted:
                self.schedule.settle(group.group_id)
            self._admit(chance)
        return self

    def _admit(self, chance: random.Random) -> None:
        while (group := self.schedule.admit()) is not None:
            end = self.now + chance.lognormvariate(0, SIGMA)
            self.lives[group.group_id] = (self.now, end)
            heapq.heappush(self.ends, (end, group.group_id))

    def _next(self, version: int, wanted: int) -> OpenGroup:
        before = self.now
        while (group := self.schedule.pick(wanted)) is None:
            self._pass_time(self.ends[0][0])
        self.waited += self.now - before
        self.schedule.accept(group.group_id)
        begun, ended = self.lives[group.group_id]
        fresh_since = self.published[max(0, version - self.rules.max_lag)]
        self.sampled += ended - begun
        self.masked += min(ended, max(begun, fresh_since)) - begun
        return group

    def _pass_time(self, until: float) -> None:
        while self.ends and self.ends[0][0] <= until:
            self.schedule.finish(heapq.heappop(self.ends)[1])
        self.now = max(self.now, until)


def main() -> None:
    print("| K | groups open | order | groups per unit of time | the trainer waits | tokens masked for age |")
    print("|---|---|---|---|---|---|")
    orders: tuple[Order, ...] = ("finished", "due", "admitted")
    for max_lag, max_groups in ((1, None), (4, None), (4, 16)):
        for order in orders:
            rules = Rules(max_lag, GROUPS_PER_STEP, STEPS, order=order, max_groups=max_groups)
            done = Simulation(rules).run()
            print(
                f"| {max_lag} | {rules.limit} | `{order}` | {STEPS * GROUPS_PER_STEP / done.now:.1f} "
                f"| {done.waited / done.now:.0%} | {done.masked / done.sampled:.0%} |"
            )


if __name__ == "__main__":
    main()
