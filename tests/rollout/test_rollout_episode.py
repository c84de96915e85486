"""One episode: who ends it, what reward it has, and that a failure is data and costs nothing else."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import sqlite3
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentrl
from agentrl.env.threads import HungCalls
from agentrl.errors import ContextOverflow, EngineUnavailable, GatewayError, SessionLimitReached
from agentrl.rollout.episode import run_episode
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.types import Episode, Limits, Sampling, StopReason, Task

TASK = Task(id="t1", env_id="test/Env", seed=11, options={"level": 3}, split="eval")


class Counting(agentrl.Env):
    """Says a number at each step and gives the reward that it is told to, until it runs out of rewards."""

    def __init__(self, rewards: list[Any] | None = None, *, truncate: bool = False) -> None:
        self.rewards = [1.0] if rewards is None else list(rewards)
        self.truncate = truncate
        self.closed = 0
        self.given: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.given = (seed, options)
        self.number = 0
        return [agentrl.system("Count."), agentrl.user("0")], {}

    def step(self, action: agentrl.Message | str) -> Any:
        self.number += 1
        reward = self.rewards[self.number - 1]
        ended = self.number == len(self.rewards)
        observation = [] if ended else [agentrl.user(str(self.number))]
        return observation, reward, ended and not self.truncate, ended and self.truncate, {}

    def close(self) -> None:
        self.closed += 1


async def play(
    env: gymnasium.Env | Callable[[], gymnasium.Env],
    policy: Any = lambda messages: "one two",
    *,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    gateway: ScriptedGateway | None = None,
    env_timeout_s: float = 5.0,
    hung: HungCalls | None = None,
) -> Episode:
    return await run_episode(
        (lambda: env) if isinstance(env, gymnasium.Env) else env,
        TASK,
        gateway or ScriptedGateway(policy),
        limits=limits or Limits(),
        sampling=sampling or Sampling(),
        metadata={"group_id": "g", "index": 2},
        env_timeout_s=env_timeout_s,
        hung=hung,
    )


async def test_environment_and_policy_take_turns_and_the_whole_conversation_is_kept() -> None:
    gateway = ScriptedGateway(lambda messages: f"after {messages[-1].text}")
    env = Counting([0.25, 0.5, 0.0])
    episode = await play(env, gateway=gateway)
    said = [(message["role"], message["content"]) for message in episode.messages]
    assert said == [
        ("system", "Count."), ("user", "0"), ("assistant", "after 0"), ("user", "1"), ("assistant", "after 1"),
        ("user", "2"), ("assistant", "after 2"),
    ]  # fmt: skip
    assert (episode.stop_reason, episode.reward, episode.turns, episode.error) == ("done", 0.75, 3, None)
    assert [len(prompt) for prompt in gateway.sessions[0].prompts] == [2, 4, 6]
    assert env.closed == 1


async def test_the_session_is_opened_for_the_task_and_sealed_with_reward_and_reason() -> None:
    gateway = ScriptedGateway(lambda messages: "x")
    sampling, limits = Sampling(temperature=0.7), Limits(max_calls=9)
    episode = await play(Counting([0.5]), gateway=gateway, sampling=sampling, limits=limits)
    (session,) = gateway.sessions
    assert (session.request.task, session.request.mode) == (TASK, "train")
    assert (session.request.sampling, session.request.limits) == (sampling, limits)
    assert session.request.metadata == {"group_id": "g", "index": 2}
    assert (session.final_reward, session.components, session.stop_reason) == (0.5, {"env": 0.5}, "done")
    assert episode.session_id == session.id


async def test_the_environment_is_given_the_tasks_seed_options_and_split() -> None:
    env = Counting()
    await play(env)
    assert env.given == (11, {"level": 3, "split": "eval"})


async def test_tools_are_offered() -> None:
    class Tooled(agentrl.ToolEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return [agentrl.user("?")], {}

        @agentrl.tool
        def look(self) -> str:
            return "seen"

    gateway = ScriptedGateway(lambda messages: "x")
    await play(gymnasium.wrappers.TimeLimit(Tooled(), 3), gateway=gateway)
    assert [tool["function"]["name"] for tool in gateway.sessions[0].tools] == ["look"]


@pytest.mark.parametrize(
    ("rewards", "total"),
    [([1.0, None], None), ([None], None), ([0.1] * 10, 1.0), ([np.float32(0.5)], 0.5), ([True], 1.0), ([3], 3.0)],
)
async def test_the_reward_is_the_sum_over_steps_and_missing_when_one_is(
    rewards: list[Any], total: float | None
) -> None:
    assert (await play(Counting(rewards))).reward == total


@given(st.lists(st.none() | st.integers(-5, 5), min_size=1, max_size=5))
def test_none_is_never_0(rewards: list[int | None]) -> None:
    episode = asyncio.run(play(Counting(rewards)))
    known = [reward for reward in rewards if reward is not None]
    assert episode.reward == (sum(known) if len(known) == len(rewards) else None)


@pytest.mark.parametrize("reward", [math.nan, math.inf, "much", [1.0]])
async def test_a_reward_that_is_no_finite_number_is_a_fault_and_missing(reward: Any) -> None:
    episode = await play(Counting([reward]))
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "reward" in (episode.error or "")


async def test_truncation_by_the_environment_or_a_wrapper() -> None:
    assert (await play(Counting([0.5], truncate=True))).stop_reason == "truncated"
    limited = await play(gymnasium.wrappers.TimeLimit(Counting([0.25] * 9), max_episode_steps=2))
    assert (limited.stop_reason, limited.reward) == ("truncated", 0.5)


async def test_the_turn_limit() -> None:
    episode = await play(Counting([0.25] * 9), limits=Limits(max_calls=3))
    assert (episode.stop_reason, episode.turns, episode.reward) == ("max_turns", 3, 0.75)


async def test_the_token_limit_of_the_episode_bounds_each_message() -> None:
    """Two words a message; 5 for the episode, 4 for a message."""
    gateway = ScriptedGateway(lambda messages: "one two")
    episode = await play(
        Counting([0.25] * 9), gateway=gateway, limits=Limits(max_tokens=5), sampling=Sampling(max_tokens=4)
    )
    assert gateway.sessions[0].max_tokens == [4, 3, 1]
    assert (episode.stop_reason, episode.reward) == ("max_tokens", 0.75)


def raising(error: Exception, *, after: int = 0) -> Any:
    def policy(messages: list[agentrl.Message]) -> str:
        if sum(message.role == "assistant" for message in messages) >= after:
            raise error
        return "x"

    return policy


async def test_a_full_context_ends_the_episode_with_what_it_has_earned() -> None:
    episode = await play(Counting([0.25] * 9), raising(ContextOverflow("full"), after=2))
    assert (episode.stop_reason, episode.reward) == ("context_overflow", 0.5)


@pytest.mark.parametrize(
    ("limit", "stop_reason", "reward"),
    [("max_calls", "max_turns", 0.5), ("max_tokens", "max_tokens", 0.5), ("deadline_s", "deadline", None)],
)
async def test_a_limit_that_the_gateway_enforced_is_a_limit_not_a_failure(
    limit: str, stop_reason: str, reward: float | None
) -> None:
    episode = await play(Counting([0.25] * 9), raising(SessionLimitReached("used up", limit), after=2))
    assert (episode.stop_reason, episode.reward) == (stop_reason, reward)


async def test_a_first_prompt_that_does_not_fit_has_no_reward() -> None:
    episode = await play(Counting([0.25]), raising(ContextOverflow("full")))
    assert (episode.stop_reason, episode.reward) == ("context_overflow", None)


@pytest.mark.parametrize("error", [GatewayError("gone"), EngineUnavailable("no engine")])
async def test_a_failure_of_the_infrastructure_is_never_a_reward(error: Exception) -> None:
    """Invariant 6."""
    gateway = ScriptedGateway(raising(error, after=1))
    episode = await play(Counting([1.0, 1.0]), gateway=gateway)
    assert (episode.stop_reason, episode.reward, episode.error) == ("policy_error", None, str(error))
    assert (gateway.sessions[0].final_reward, gateway.sessions[0].stop_reason) == (None, "policy_error")


async def test_a_session_that_cannot_be_opened_is_a_policy_error() -> None:
    class Closed(ScriptedGateway):
        async def open_session(self, request: Any) -> Any:
            raise GatewayError("no room")

    episode = await play(Counting(), gateway=Closed(lambda messages: "x"))
    assert (episode.session_id, episode.stop_reason, episode.reward) == ("", "policy_error", None)


async def test_a_reward_that_cannot_be_posted_is_missing() -> None:
    gateway = ScriptedGateway(lambda messages: "x")

    class Sealing(Counting):
        def step(self, action: Any) -> Any:
            gateway.sessions[0].stop_reason = StopReason.DONE
            return super().step(action)

    episode = await play(Sealing(), gateway=gateway)
    assert (episode.stop_reason, episode.reward) == ("policy_error", None)


class Broken(Counting):
    def __init__(self, where: str, how: Callable[[], Any]) -> None:
        self.broken = (where, how)
        if where == "__init__":
            how()
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.broken[1]() if self.broken[0] == "reset" else super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        return self.broken[1]() if self.broken[0] == "step" else super().step(action)

    def close(self) -> None:
        if self.broken[0] == "close":
            self.broken[1]()


def explode() -> Any:
    raise LookupError("the reason")


@pytest.mark.parametrize("where", ["__init__", "reset", "step"])
async def test_an_environment_that_raises_is_a_typed_error_with_its_traceback_in_the_log(
    where: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Case 35."""
    gateway = ScriptedGateway(lambda messages: "x")
    episode = await play(lambda: Broken(where, explode), gateway=gateway)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert episode.error == f"test/Env.{where} raised LookupError: the reason"
    assert "in explode" in caplog.text
    assert gateway.sessions[0].stop_reason == "env_error"


async def test_a_close_that_raises_is_logged_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    episode = await play(lambda: Broken("close", explode))
    assert (episode.stop_reason, episode.reward) == ("done", 1.0)
    assert "test/Env.close raised LookupError" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration(), KeyboardInterrupt()])
async def test_an_environment_cannot_end_the_process(error: BaseException) -> None:
    def leave() -> Any:
        raise error

    assert (await play(lambda: Broken("step", leave))).stop_reason == "env_error"


class Spiteful(Exception):
    """An object whose every method raises."""

    def __repr__(self) -> str:
        raise LookupError("no repr")

    __str__ = __float__ = __repr__


async def test_an_exception_that_cannot_be_printed_costs_its_own_episode() -> None:
    def spite() -> Any:
        raise Spiteful

    episode = await play(lambda: Broken("step", spite))
    assert (episode.stop_reason, episode.error) == ("env_error", "test/Env.step raised Spiteful")


async def test_rewards_whose_sum_is_past_the_floats_are_missing() -> None:
    episode = await play(Counting([1e308, 1e308]))
    assert (episode.stop_reason, episode.reward) == ("done", None)


@pytest.mark.parametrize("tools", [[{1, 2}], [5], "x", [{"type": "function", "function": {"name": "\ud800"}}]])
async def test_tools_that_are_none_are_the_environments_fault(tools: Any) -> None:
    class Offering(Counting):
        @property
        def tools(self) -> Any:
            return tools

    episode = await play(Offering())
    assert episode.stop_reason == "env_error"
    assert "test/Env.tools gave" in (episode.error or "")


async def test_numbers_of_numpy_in_a_tools_schema_become_plain_ones() -> None:
    class Offering(Counting):
        @property
        def tools(self) -> Any:
            return [{"type": "function", "function": {"name": "f", "parameters": {"maximum": np.int64(3)}}}]

    gateway = ScriptedGateway(lambda messages: "x")
    assert (await play(Offering(), gateway=gateway)).stop_reason == "done"
    assert json.loads(json.dumps(gateway.sessions[0].tools))[0]["function"]["parameters"] == {"maximum": 3}


@pytest.mark.parametrize(
    ("where", "returned", "said"),
    [
        ("reset", [agentrl.user("x")], "return (observation, info)"),
        ("reset", ("x", {}), "an observation is the list of new chat messages, got str"),
        ("reset", ([], {}), "returned no new message"),
        ("reset", ([agentrl.user("x")], None), "info of type NoneType"),
        ("step", ([], 1.0, True, {}), "return (observation, reward, terminated, truncated, info)"),
        ("step", ([], 1.0, False, False, {}), "returned no new message and the episode goes on"),
        ("step", ([{"role": "user", "content": object()}], 0.0, True, False, {}), "no observation"),
        ("step", ([{"role": "user", "content": "x", "extra": {1, 2}}], 0.0, True, False, {}), "not JSON"),
        ("step", ([], 1.0, "yes", False, {}), "terminated='yes'"),
        ("step", ([], 10**400, True, False, {}), "return a number or None"),
        ("step", ([], 10**5000, True, False, {}), "returned the reward a int"),
        ("step", ([], Spiteful(), True, False, {}), "return a number or None"),
        ("step", ([], 1.0, Spiteful(), False, {}), "return True or False"),
        ("step", Spiteful(), "return (observation, reward, terminated, truncated, info)"),
        ("reset", Spiteful(), "return (observation, info)"),
    ],
)
async def test_an_environment_that_breaks_the_contract_is_told_how(where: str, returned: Any, said: str) -> None:
    episode = await play(lambda: Broken(where, lambda: returned))
    assert episode.stop_reason == "env_error"
    assert said in (episode.error or "")


async def test_a_hanging_step_ends_its_own_episode_and_the_loop_goes_on() -> None:
    """Case 33, with a thread that waits."""
    release, hung = threading.Event(), HungCalls()
    stuck = await play(lambda: Broken("step", release.wait), env_timeout_s=0.05, hung=hung)
    assert (stuck.stop_reason, stuck.reward) == ("env_timeout", None)
    assert stuck.error == "test/Env.step took longer than 0.05 s"
    assert hung.count == 1
    release.set()


async def test_a_step_that_spins_does_not_stop_the_others() -> None:
    """Case 33: seven others finish while one spins."""
    spinning = threading.Event()

    def spin() -> None:
        while not spinning.is_set():
            pass

    stuck = play(lambda: Broken("step", spin), env_timeout_s=0.3)
    others = [play(Counting([0.5, 0.5])) for _ in range(7)]
    first, *rest = await asyncio.gather(stuck, *others)
    spinning.set()
    assert first.stop_reason == "env_timeout"
    assert [(episode.stop_reason, episode.reward) for episode in rest] == [("done", 1.0)] * 7


async def test_hung_calls_are_capped() -> None:
    release, hung = threading.Event(), HungCalls(limit=2)
    for _ in range(2):
        await play(lambda: Broken("step", release.wait), env_timeout_s=0.02, hung=hung)
    refused = await play(Counting(), hung=hung)
    assert refused.stop_reason == "env_error"
    assert "2 environment calls hang" in (refused.error or "")
    release.set()


async def test_a_call_that_returns_after_all_is_no_longer_counted() -> None:
    release, returned, hung = threading.Event(), threading.Event(), HungCalls()

    class Late(HungCalls):
        def add(self, change: int) -> None:
            hung.add(change)
            if change < 0:
                returned.set()

    await play(lambda: Broken("step", release.wait), env_timeout_s=0.02, hung=Late())
    assert hung.count == 1
    release.set()
    assert await asyncio.to_thread(returned.wait, 5)
    assert hung.count == 0


async def test_all_calls_of_a_plain_environment_are_in_one_thread_that_is_not_the_loops() -> None:
    class Database(Counting):
        def __init__(self) -> None:
            super().__init__()
            assert threading.current_thread() is not threading.main_thread()
            self.database = sqlite3.connect(":memory:")  # usable in the thread that opened it only

        def step(self, action: Any) -> Any:
            self.database.execute("select 1")
            return super().step(action)

        def close(self) -> None:
            self.database.close()

    assert (await play(Database)).reward == 1.0


class AsyncEnv(agentrl.Env):
    def __init__(self, step: Any) -> None:
        self.run = step
        self.closed_on: Any = None

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.loop = asyncio.get_running_loop()
        return [agentrl.user("?")], {}

    async def step(self, action: Any) -> Any:
        assert asyncio.get_running_loop() is self.loop
        await self.run()
        return [], 1.0, True, False, {}

    async def close(self) -> None:
        self.closed_on = asyncio.get_running_loop()


async def nothing() -> None: ...


async def for_ever() -> None:
    await asyncio.Event().wait()


async def leave() -> None:
    sys.exit(3)


async def cancel_itself() -> None:
    raise asyncio.CancelledError


async def test_an_async_environment_runs_on_one_loop_that_is_not_the_workers() -> None:
    env = AsyncEnv(nothing)
    assert (await play(env)).reward == 1.0
    assert env.closed_on is env.loop
    assert env.closed_on is not asyncio.get_running_loop()


async def test_an_async_environment_works_under_a_wrapper() -> None:
    assert (await play(gymnasium.wrappers.TimeLimit(AsyncEnv(nothing), 5))).reward == 1.0


@pytest.mark.parametrize(
    ("step", "stop_reason"),
    [(for_ever, "env_timeout"), (explode, "env_error"), (leave, "env_error"), (cancel_itself, "env_error")],
)
async def test_failures_of_an_async_environment_are_its_episodes_only(step: Any, stop_reason: str) -> None:
    episode = await play(AsyncEnv(step), env_timeout_s=0.05)
    assert (episode.stop_reason, episode.reward) == (stop_reason, None)


async def test_the_deadline_ends_the_episode_without_a_reward_and_cleans_up() -> None:
    async def slow(messages: list[agentrl.Message]) -> str:
        await asyncio.Event().wait()
        return "never"

    env, gateway = Counting(), ScriptedGateway(slow)
    episode = await play(env, gateway=gateway, limits=Limits(deadline_s=1.0))
    assert (episode.stop_reason, episode.reward) == ("deadline", None)
    assert gateway.sessions[0].stop_reason == "deadline"
    assert env.closed == 1


async def test_cancelling_cleans_up_and_is_raised() -> None:
    asked = asyncio.Event()

    async def slow(messages: list[agentrl.Message]) -> str:
        asked.set()
        await asyncio.Event().wait()
        return "never"

    env, gateway = Counting(), ScriptedGateway(slow)
    running = asyncio.create_task(play(env, gateway=gateway))
    await asked.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (gateway.sessions[0].stop_reason, gateway.sessions[0].final_reward) == ("cancelled", None)
    assert env.closed == 1


async def test_an_environment_cannot_change_what_was_said() -> None:
    class Meddling(Counting):
        def step(self, action: Any) -> Any:
            action["content"] = "something else"
            return super().step(action)

    gateway = ScriptedGateway(lambda messages: "mine")
    await play(Meddling([0.0, 0.0]), gateway=gateway)
    assert gateway.sessions[0].prompts[1][2].text == "mine"


async def test_the_log_of_a_good_episode_is_empty(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="agentrl"):
        await play(Counting())
    assert caplog.text == ""


async def test_bad_tool_arguments_are_answered_and_the_sampled_call_goes_back_unchanged() -> None:
    """Case 39, through the rollout."""

    class Tooled(agentrl.ToolEnv):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            return [agentrl.user("?")], {}

        @agentrl.tool
        def look(self, where: str) -> str:
            return "seen"

        def score(self, message: agentrl.Message) -> float:
            return 1.0

    function = {"name": "look", "arguments": '{"where":'}
    broken = agentrl.assistant(None, tool_calls=[{"id": "c1", "type": "function", "function": function}])
    gateway = ScriptedGateway(lambda messages: broken if messages[-1].role == "user" else "done")
    episode = await play(Tooled(), gateway=gateway)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 2)
    _, sampled, answered = gateway.sessions[0].prompts[1]
    assert json.loads(json.dumps(sampled)) == broken
    assert answered.text.startswith("Error: the arguments are not valid JSON")
