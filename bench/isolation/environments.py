"""What is measured: environments that answer at once, and one that spins in its second step."""

from __future__ import annotations

import asyncio
from typing import Any

import agentrl


class Counter(agentrl.Env):
    """Says its number and counts. With `options["spins"]` it counts to one and then spins without yielding."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.options = options or {}
        self.steps = 0
        return [agentrl.user(str(self.options["number"]))], {}

    def step(self, action: agentrl.Message | str) -> Any:
        self.steps += 1
        while self.options["spins"] and self.steps == 2:
            pass
        ended = isinstance(action, agentrl.Message) and action.text == "stop"
        return [] if ended else [agentrl.user(str(self.steps))], 1.0, ended, False, {}


class AsyncCounter(Counter):
    """The same with `async def`; it spins without ever awaiting."""

    async def step(self, action: agentrl.Message | str) -> Any:
        await asyncio.sleep(0)
        return super().step(action)
