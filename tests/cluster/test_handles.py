"""Ray actors behind the loop's ports: who failed is named, nobody is waited for in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.handles import RayRollouts, RayTrainer, cause, remote
from agentrl.errors import ConfigError, RunError, TrainerError
from agentrl.types import Batch, Group, Task


class Method:
    """What Ray makes of an actor's method: `.remote(...)` gives something to await."""

    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self._answer = answer

    def remote(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        return self._answer(*args, **kwargs)


class Rank:
    def __init__(self, answer: Callable[..., Awaitable[Any]]) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.call = Method(answer)


def trainer(*answers: Callable[..., Awaitable[Any]], timeout_s: float = 30.0) -> RayTrainer:
    return RayTrainer([Rank(answer) for answer in answers], shared_memory=Path("memory"), timeout_s=timeout_s)


async def hangs(*args: object) -> None:
    await asyncio.Event().wait()


async def test_the_answer_is_that_of_rank_0_and_every_rank_is_asked():
    asked = []

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def answer(method: str, *args: object) -> dict[str, float]:
            asked.append((number, method))
            return {"loss": float(number), "skipped": False}

        return answer

    metrics = await trainer(rank(0), rank(1)).step(Batch(version=0, rows=[]))
    assert metrics == {"loss": 0.0, "skipped": 0.0}
    assert asked == [(0, "step"), (1, "step")]


async def test_only_rank_0_opens_the_port_where_all_meet():
    asked = []

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def answer(method: str, *args: object) -> int:
            asked.append((number, method, *args))
            return 4711

        return answer

    await trainer(rank(0), rank(1)).setup()
    assert asked == [(0, "bind"), (0, "setup", 4711), (1, "setup", 4711)]


async def test_a_rank_that_fails_is_named_while_the_others_wait_for_it_in_a_collective():
    async def fails(*args: object) -> None:
        raise ValueError("the loss is made of cheese")

    with pytest.raises(TrainerError, match="trainer rank 1 failed in step: ValueError: the loss is made of cheese"):
        await trainer(hangs, fails).step(Batch(version=0, rows=[]))


async def test_a_step_that_never_ends_is_a_trainer_error_that_says_which_limit():
    with pytest.raises(TrainerError, match=r"trainer step did not end within loop.step_timeout_s = 0.05 s"):
        await trainer(hangs, timeout_s=0.05).step(Batch(version=0, rows=[]))


async def test_groups_go_round_the_workers_and_a_worker_that_fails_ends_the_run():
    class Worker:
        def __init__(self, name: str) -> None:
            async def run_group(group_id: str, task: Task, **kwargs: object) -> Group:
                if name == "b":
                    raise OSError("no space left")
                return Group(group_id=f"{group_id} on {name}", task=task)

            self.run_group = Method(run_group)

    rollouts = RayRollouts([Worker("a"), Worker("b")])
    task = Task(id="t", env_id="e")
    assert (await rollouts.run_group("g0", task, size=2, version=0, mode="train")).group_id == "g0 on a"
    with pytest.raises(RunError, match="a rollout worker failed on group g1: OSError: no space left"):
        await rollouts.run_group("g1", task, size=2, version=0, mode="train")


class RayTaskError(Exception):
    """As Ray wraps what an actor raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback of many lines\n\nRayTaskError")
        self.cause = cause


async def test_an_error_that_an_actor_raised_on_purpose_arrives_as_itself():
    async def fails() -> None:
        raise RayTaskError(ConfigError("port 80 is in use"))

    with pytest.raises(ConfigError, match="port 80 is in use"):
        await remote(fails())


def test_a_remote_error_is_told_in_one_line():
    assert cause(RayTaskError(KeyError("x"))) == "KeyError: 'x'"
    assert cause(ValueError("first\nlast")) == "ValueError: last"
