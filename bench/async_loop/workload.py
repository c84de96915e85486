"""The work: episodes whose lengths and tool latencies are log-normal, the same ones in every mode."""

from __future__ import annotations

import math
import random

from msgspec import Struct


class LogNormal(Struct, frozen=True):
    """Cut at `most`. What is drawn for a key is the same in every process."""

    median: float
    sigma: float
    most: float

    def draw(self, key: str) -> float:
        drawn = random.Random(key).lognormvariate(math.log(self.median), self.sigma)
        return min(drawn, self.most)


class Workload(Struct, frozen=True, kw_only=True):
    """Seconds and tokens of one turn; turns of one episode."""

    turns: LogNormal = LogNormal(3.0, 0.4, 8.0)
    tokens: LogNormal = LogNormal(40.0, 0.8, 300.0)  # of an answer of the scripted engine
    tool_s: LogNormal = LogNormal(0.3, 1.0, 8.0)  # between an answer and the next turn


class Plan(Struct, frozen=True, kw_only=True):
    """One run of the loop. `max_lag` None only samples: nothing is trained and no weights are swapped."""

    max_lag: int | None
    steps: int
    warm_steps: int  # of these, the first ones, which are not measured
    groups_per_step: int = 8
    group_size: int = 4
    concurrency: int = 32  # episodes at once
    outstanding: int = 40  # groups admitted at a time where nothing is trained
    train_s: float = 2.0
    swap_mode: str = "recompute"
    max_tokens: int = 1024  # of one answer
    workload: Workload = Workload()
    profile: str = ""  # a file for the driver's profile
