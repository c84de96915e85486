"""The faults of a campaign: a pure function of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Literal, NamedTuple

Part = Literal[
    "engine", "engine actor", "gateway", "rollout worker", "trainer rank", "reward service", "driver", "disk", "node"
]
Action = Literal["kill", "stop", "delay", "interrupt", "fill"]


class Kind(NamedTuple):
    """What is done to which part. `weight`: how often, beside the one time that every kind comes."""

    action: Action
    part: Part
    weight: float

    @property
    def name(self) -> str:
        return f"{self.action} {self.part}"


KINDS = (
    Kind("kill", "engine", 4),
    Kind("stop", "engine", 2),
    Kind("delay", "engine", 2),
    Kind("kill", "engine actor", 1),
    Kind("kill", "gateway", 4),
    Kind("stop", "gateway", 1),
    Kind("delay", "gateway", 2),
    Kind("kill", "rollout worker", 4),
    Kind("stop", "rollout worker", 1),
    Kind("delay", "rollout worker", 2),
    Kind("kill", "trainer rank", 4),
    Kind("stop", "trainer rank", 1),
    Kind("delay", "trainer rank", 2),
    Kind("kill", "reward service", 4),
    Kind("stop", "reward service", 2),
    Kind("delay", "reward service", 2),
    Kind("kill", "driver", 2),
    Kind("interrupt", "driver", 1),
    Kind("fill", "disk", 2),
)
"""kill: SIGKILL. stop: SIGSTOP for as long as it lives. delay: SIGSTOP, and SIGCONT some seconds later. interrupt:
SIGTERM, the polite end of a run. fill: no byte is left in the run directory's file system for some seconds."""

ON_NODES = (*KINDS, Kind("kill", "node", 2))
"""Of a run on several nodes: one loses its power, and is back some seconds later."""


class Fault(NamedTuple):
    """It comes `wait_s` after step `after_step` was there; a delay, or a full disk, lasts `lasts_s`."""

    kind: Kind
    after_step: int
    wait_s: float
    lasts_s: float


def plan(
    seed: int, count: int, *, steps: int, kinds: Sequence[Kind] = KINDS, longest_wait_s: float = 3.0
) -> list[Fault]:
    """`count` faults, in order, spread over a run of `steps` steps, which gets its first two and last two in peace.

    Every kind comes once before the rest is drawn by weight, as far as `count` goes; the order is random.
    """
    if steps < 5 or count < 1 or not kinds:
        raise ValueError(f"{count} faults of {len(kinds)} kinds in {steps} steps: take at least 1, 1 and 5")
    chance = random.Random(seed)
    chosen = chance.sample(kinds, min(count, len(kinds)))
    chosen += chance.choices(kinds, weights=[kind.weight for kind in kinds], k=count - len(chosen))
    chance.shuffle(chosen)
    first, last = 2, steps - 3
    return [
        Fault(
            kind,
            after_step=first + (last - first) * index // max(1, count - 1),
            wait_s=round(chance.uniform(0.0, longest_wait_s), 3),
            lasts_s=round(chance.uniform(2.0, 6.0), 3),
        )
        for index, kind in enumerate(chosen)
    ]
