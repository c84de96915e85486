"""Case 33: one environment of 32 on a worker spins without yielding; the others, and the worker's loop, go on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Episode, Task

LIMIT_S = 1.0
OTHERS = 31


def a_task(name: str, **options: Any) -> Task:
    return Task(id="t", env_id=f"hostile_envs:{name}", options=options)


async def longest_stall(stop: asyncio.Event) -> float:
    """Seconds that this event loop was late by, at most."""
    longest = 0.0
    while not stop.is_set():
        expected = time.monotonic() + 0.01
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - expected)
    return longest


@pytest.mark.parametrize("name", ["CountsSteps", "CountsStepsAsync"])
@pytest.mark.parametrize("isolation", ["thread", "process"])
async def test_one_that_spins_ends_in_time_and_the_others_and_the_loop_go_on(isolation: str, name: str) -> None:
    """Within its limit and 2 s; the loop, on which a health check would be answered, is never 1 s late."""
    config = RolloutConfig.model_validate(
        {"isolation": isolation, "env_timeout_s": LIMIT_S, "episode_retries": 0, "max_turns": 100}
    )
    spinning = asyncio.Event()

    def policy(messages: Any) -> str:
        spinning.set()
        return "x"

    worker = RolloutWorker(config, "", "", gateway=ScriptedGateway(policy))
    await worker.run_episodes([a_task(name, steps=1)])  # the imports are done
    spinning.clear()

    async def spin() -> tuple[Episode, float]:
        running = asyncio.create_task(worker.run_episodes([a_task(name, steps=1, how="spin")]))
        await spinning.wait()
        started = time.monotonic()
        (episode,) = await running
        return episode, time.monotonic() - started

    done = asyncio.Event()
    watching = asyncio.create_task(longest_stall(done))
    spinner = asyncio.create_task(spin())
    await spinning.wait()
    others = await worker.run_episodes([a_task(name, steps=10) for _ in range(OTHERS)])
    stuck, lasted_s = await spinner
    done.set()
    await worker.close()
    assert (stuck.stop_reason, stuck.reward) == ("env_timeout", None)
    assert lasted_s < LIMIT_S + 2.0
    assert [(episode.stop_reason, episode.reward) for episode in others] == [("done", 10.0)] * OTHERS
    assert await watching < 1.0
