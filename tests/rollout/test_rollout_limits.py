"""Limits as values: of the run, the environment and the task, the tighter of each; and what goes past them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.env.program import Program
from agentrl.env.threads import HungCalls
from agentrl.errors import GatewayError
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.episode import run_episode
from agentrl.rollout.hosts.thread import ThreadHost
from agentrl.rollout.program import run_program
from agentrl.rollout.program_host import ProgramHost
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Episode, Limits, Sampling, Task


class Tools(agentrl.ToolEnv):
    """Calls are answered; the message without one is worth 1."""

    limits = Limits(max_calls=6, max_tool_calls=3)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("?")], {}

    @agentrl.tool
    def look(self) -> str:
        """Look."""
        LOOKED.append(1)
        return "seen"

    def score(self, message: agentrl.Message) -> float:
        return 1.0


LOOKED: list[int] = []
ENV_ID = f"{__name__}:Tools"


def calls(*counts: int) -> Any:
    """A policy whose messages have so many calls, one after the other."""
    left = iter(counts)

    def policy(messages: list[agentrl.Message]) -> agentrl.Message:
        function = {"name": "look", "arguments": "{}"}
        made = [{"id": f"c{i}", "type": "function", "function": function} for i in range(next(left))]
        return agentrl.assistant("done" if not made else None, tool_calls=made)

    return policy


async def play(policy: Any, *, task_limits: Limits | None = None, **config: Any) -> tuple[Episode, ScriptedGateway]:
    LOOKED.clear()
    gateway = ScriptedGateway(policy)
    worker = RolloutWorker(RolloutConfig(**config), "unused", "unused", gateway=gateway)
    (episode,) = await worker.run_episodes([Task(id="t", env_id=ENV_ID, limits=task_limits)])
    await worker.close()
    return episode, gateway


async def test_the_tighter_of_run_environment_and_task_holds() -> None:
    _, gateway = await play(
        calls(0), task_limits=Limits(max_tokens=50, max_calls=9), max_turns=8, max_episode_tokens=60
    )
    assert gateway.sessions[0].request.limits == Limits(max_calls=6, max_tokens=50, max_tool_calls=3, deadline_s=600.0)


async def test_as_many_tool_calls_as_allowed_are_answered() -> None:
    episode, _ = await play(calls(2, 1, 0))
    assert (episode.stop_reason, episode.reward, len(LOOKED)) == ("done", 1.0, 3)


async def test_the_message_past_the_limit_of_tool_calls_is_not_run_and_earns_nothing() -> None:
    episode, gateway = await play(calls(2, 2, 0))
    assert (episode.stop_reason, episode.reward, episode.turns, len(LOOKED)) == ("max_tool_calls", 0.0, 2, 2)
    assert list(gateway.sessions[0].call_rewards.values()) == [0.0, 0.0]


async def test_a_first_message_past_the_limit_is_the_policys_doing_and_worth_nothing() -> None:
    """Not a missing reward: a policy that floods the environment with calls has to learn not to."""
    episode, _ = await play(calls(4))
    assert (episode.stop_reason, episode.reward, len(LOOKED)) == ("max_tool_calls", 0.0, 0)


@pytest.mark.parametrize("name", ["max_calls", "max_tokens", "max_tool_calls", "deadline_s"])
def test_each_limit_has_its_stop_reason_and_is_positive(name: str) -> None:
    assert Limits.stop_reason(name).value in ("max_turns", "max_tokens", "max_tool_calls", "deadline")
    with pytest.raises(ValueError, match=f"limits.{name} is 0"):
        Limits(**{name: 0})


@given(st.none() | st.integers(1, 9), st.none() | st.integers(1, 9))
def test_no_limit_is_the_widest(a: int | None, b: int | None) -> None:
    tighter = Limits(max_calls=a).tighter(Limits(max_calls=b)).max_calls
    assert tighter == min((value for value in (a, b) if value is not None), default=None)


async def test_rewards_of_steps_are_kept_with_their_calls() -> None:
    """What the environment gave for each message, beside the sum."""
    _, gateway = await play(calls(1, 0))
    assert gateway.sessions[0].call_rewards == {"session-0-call-0": 0.0, "session-0-call-1": 1.0}
    assert gateway.sessions[0].final_reward == 1.0


# Clean-up


class Closing(agentrl.Env):
    """Ends in the way that its task says; counts how often it was closed."""

    closed: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.way = (options or {})["way"]
        if self.way == "reset":
            raise RuntimeError("no board")
        return [agentrl.user("?")], {}

    def step(self, action: Any) -> Any:
        if self.way == "step":
            raise RuntimeError("no move")
        return [agentrl.user("go on")], 0.0, self.way == "done", self.way == "truncated", {}

    def close(self) -> None:
        self.closed.append(self.way)
        if self.way == "close":
            raise RuntimeError("no door")


@pytest.mark.parametrize(
    ("way", "stop_reason"),
    [
        ("done", "done"), ("truncated", "truncated"), ("limit", "max_turns"), ("reset", "env_error"),
        ("step", "env_error"), ("close", "max_turns"), ("policy", "policy_error"), ("deadline", "deadline"),
    ],
)  # fmt: skip
async def test_an_environment_is_closed_once_on_every_path(way: str, stop_reason: str) -> None:
    async def policy(messages: Any) -> str:
        if way == "policy":
            raise GatewayError("no engine")
        if way == "deadline":
            await asyncio.Event().wait()
        return "x"

    Closing.closed.clear()
    gateway = ScriptedGateway(policy)
    config = RolloutConfig(max_turns=2, episode_retries=0, deadline_s=0.1 if way == "deadline" else 60.0)
    worker = RolloutWorker(config, "unused", "unused", gateway=gateway)
    (episode,) = await worker.run_episodes([Task(id="t", env_id=f"{__name__}:Closing", options={"way": way})])
    await worker.close()
    assert episode.stop_reason == stop_reason
    assert Closing.closed == [way]
    assert [session.stop_reason for session in gateway.sessions] == [stop_reason], "and its session is sealed"


async def test_it_is_closed_once_however_often_the_episode_is_cancelled() -> None:
    asked = asyncio.Event()

    async def policy(messages: Any) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    Closing.closed.clear()
    gateway = ScriptedGateway(policy)
    worker = RolloutWorker(RolloutConfig(), "unused", "unused", gateway=gateway)
    task = Task(id="t", env_id=f"{__name__}:Closing", options={"way": "done"})
    playing = asyncio.create_task(worker.run_episodes([task]))
    await asked.wait()
    for _ in range(5):
        playing.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await playing
    await worker.close()
    assert (Closing.closed, gateway.sessions[0].stop_reason) == (["done"], "cancelled")


@pytest.mark.parametrize("cut", ["deadline", "timeout"])
async def test_a_plain_environment_is_closed_in_its_thread_when_the_call_that_was_cut_short_has_ended(cut: str) -> None:
    """Nobody waits for that; but what it holds (a browser, a connection) is not left open."""
    stepping, release, closed = threading.Event(), threading.Event(), threading.Event()
    threads: list[str] = []

    class Slow(agentrl.Env):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return [agentrl.user("?")], {}

        def step(self, action: Any) -> Any:
            threads.append(threading.current_thread().name)
            stepping.set()
            release.wait(30)
            return [], 1.0, True, False, {}

        def close(self) -> None:
            threads.append(threading.current_thread().name)
            closed.set()

    gateway = ScriptedGateway(lambda messages: "x")
    limits = Limits(deadline_s=0.5 if cut == "deadline" else None)
    timeout_s = 0.5 if cut == "timeout" else 30.0
    task = Task(id="t", env_id="test/Slow")
    episode = await run_episode(
        Slow, task, gateway, limits=limits, sampling=Sampling(), env_timeout_s=timeout_s, hung=HungCalls()
    )
    assert episode.stop_reason == ("deadline" if cut == "deadline" else "env_timeout")
    assert (stepping.is_set(), closed.is_set()) == (True, False)
    release.set()
    assert await asyncio.to_thread(closed.wait, 30)
    assert len(set(threads)) == 1


async def test_an_environment_that_nobody_waited_for_any_more_when_it_was_made_is_closed() -> None:
    closed = threading.Event()

    class Quick(Closing):
        def close(self) -> None:
            closed.set()

    host = ThreadHost(Quick, name="quick", timeout_s=30, hung=HungCalls())
    resetting = asyncio.create_task(host.reset(Task(id="t", env_id="test/Quick")))
    await asyncio.sleep(0)  # it is asked for
    while host._made is None:  # made in its thread, while this one tells nobody
        pass
    resetting.cancel()
    await asyncio.wait([resetting])
    assert resetting.cancelled()
    await host.close()
    assert await asyncio.to_thread(closed.wait, 30)


async def test_an_async_environment_is_closed_though_a_plain_part_of_it_was_cut_short() -> None:
    release, closed = threading.Event(), threading.Event()

    class SlowTools(Closing):
        @property
        def tools(self) -> list[dict[str, Any]]:
            release.wait(30)
            return []

        async def close(self) -> None:
            closed.set()

    task = Task(id="t", env_id="test/SlowTools", options={"way": "done"})
    episode = await run_episode(
        SlowTools, task, ScriptedGateway(lambda messages: "x"), limits=Limits(deadline_s=0.5), sampling=Sampling()
    )
    release.set()
    assert (episode.stop_reason, closed.is_set()) == ("deadline", True)


async def test_a_plain_program_that_the_deadline_cut_short_is_closed_when_its_run_has_ended() -> None:
    release, closed = threading.Event(), threading.Event()

    class Slow(Program):
        def run(self, task: Task, policy: Any) -> float:
            release.wait(30)
            return 1.0

        def close(self) -> None:
            closed.set()

    host = ProgramHost(Slow, {}, name="slow", timeout_s=30, hung=HungCalls())
    gateway = ScriptedGateway(lambda messages: "x")
    episode = await run_program(host, Task(id="t"), gateway, limits=Limits(deadline_s=0.5), sampling=Sampling())
    assert (episode.stop_reason, closed.is_set()) == ("deadline", False)
    release.set()
    assert await asyncio.to_thread(closed.wait, 30)
