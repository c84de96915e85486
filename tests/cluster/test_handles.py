"""Ray actors behind the loop's ports: who failed is named, nobody is waited for in vain."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.carriers import SharedMemoryCarrier
from agentrl.cluster.handles import RayTrainer, cause, remote
from agentrl.errors import ConfigError, TrainerError, TrainerLost
from agentrl.types import Batch


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
    return RayTrainer(
        [Rank(answer) for answer in answers],
        carrier=SharedMemoryCarrier(Path("memory")),
        timeout_s=timeout_s,
        death_seen_s=0.05,
    )


async def hangs(*args: object) -> None:
    await asyncio.Event().wait()


async def test_the_answer_is_that_of_rank_0_and_every_rank_is_asked():
    asked = []

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def answer(method: str, *args: object) -> dict[str, float]:
            asked.append((number, method))
            return {"loss": float(number), "skipped": False, "untrained_sessions": ["s3", "s1"]}

        return answer

    result = await trainer(rank(0), rank(1)).step(Batch(version=0, rows=[]))
    assert result.metrics == {"loss": 0.0, "skipped": 0.0}
    assert result.untrained_sessions == {"s1", "s3"}
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


async def test_a_checkpoint_is_saved_and_loaded_by_every_rank():
    asked = []

    def rank(number: int) -> Callable[..., Awaitable[Any]]:
        async def answer(method: str, *args: object) -> int:
            asked.append((number, method, *args))
            return 12

        return answer

    both = trainer(rank(0), rank(1))
    await both.save(Path("/v12/trainer"), 12)
    assert await both.load(Path("/v12/trainer")) == 12
    assert asked == [(n, *call) for call in (("save", "/v12/trainer", 12), ("load", "/v12/trainer")) for n in (0, 1)]


async def test_a_rank_that_fails_is_named_while_the_others_wait_for_it_in_a_collective():
    async def fails(*args: object) -> None:
        raise ValueError("the loss is made of cheese")

    with pytest.raises(TrainerError, match="trainer rank 1 failed in step: ValueError: the loss is made of cheese"):
        await trainer(hangs, fails).step(Batch(version=0, rows=[]))


class RayActorError(Exception):
    """What all of Ray's errors of dead actors are."""


class ActorDiedError(RayActorError):
    pass


async def test_a_rank_that_died_is_lost_though_the_others_say_first_that_their_collective_broke():
    died = asyncio.Event()

    async def breaks(*args: object) -> None:
        died.set()
        raise RuntimeError("Connection closed by peer")

    async def dies(*args: object) -> None:
        await died.wait()
        raise ActorDiedError("the actor died")

    with pytest.raises(TrainerLost, match="trainer rank 1 died in step"):
        await trainer(breaks, dies).step(Batch(version=0, rows=[]))


async def test_a_step_that_never_ends_is_a_trainer_error_that_says_which_limit():
    with pytest.raises(TrainerLost, match=r"trainer step did not end within loop.step_timeout_s = 0.05 s"):
        await trainer(hangs, timeout_s=0.05).step(Batch(version=0, rows=[]))


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
