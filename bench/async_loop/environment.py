"""An environment whose tool takes its time. It has no other cost, so that what is measured is the loop."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

import agentrl
from agentrl.env.base import ResetResult, StepResult
from bench.async_loop.workload import Workload


class SlowTool(agentrl.Env):
    """A conversation of so many turns; a tool's latency passes between two of them. Drawn by task and attempt."""

    attempts: ClassVar[defaultdict[int, Iterator[int]]] = defaultdict(itertools.count)  # of each task in this process

    def __init__(self, workload: dict[str, Any] | None = None) -> None:
        self._workload = msgspec.convert(workload or {}, Workload)
        self._key = ""
        self._turn = self._turns = 0

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        number = seed or 0
        self._key = f"{number % 100_003}.{next(self.attempts[number])}"
        self._turn, self._turns = 0, max(1, round(self._workload.turns.draw(f"turns {self._key}")))
        return [agentrl.user(f"What is {self._key}?")], {}

    async def step(self, action: agentrl.Message | str) -> StepResult:
        self._turn += 1
        if self._turn >= self._turns:
            return [], float(random.Random(self._key).random() < 0.5), True, False, {}
        key = f"{self._key}.{self._turn}"
        await asyncio.sleep(self._workload.tool_s.draw(f"tool {key}"))
        return [agentrl.user(f"And {key}?")], 0.0, False, False, {}
