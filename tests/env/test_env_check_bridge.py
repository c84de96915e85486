"""An async environment that exits ends its own call, not the loop that plain callers share."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import agentrl


class Exits(agentrl.Env):
    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return [agentrl.user("x")], {}

    async def step(self, action: agentrl.Message | str) -> Any:
        sys.exit(3)


def test_a_plain_caller_gets_the_exit_and_later_calls_still_work() -> None:
    env = Exits()
    env.reset()
    with pytest.raises(SystemExit) as exiting:
        env.step("x")
    assert exiting.value.code == 3
    assert env.reset()[0] == [agentrl.user("x")]
