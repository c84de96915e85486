"""`ToolEnv`: calls are run and answered, faults go to the model, an answer ends the episode."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import gymnasium
import pytest

import agentrl


def calls(*named: tuple[str, Any]) -> agentrl.Message:
    """An assistant message with one call per (name, arguments); arguments that are no string are sent as JSON."""
    return agentrl.assistant(
        None,
        tool_calls=[
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": a if isinstance(a, str) else json.dumps(a)},
            }
            for index, (name, a) in enumerate(named)
        ],
    )


class Plain(agentrl.ToolEnv):
    max_rounds = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("Go.")], {}

    @agentrl.tool
    def double(self, number: int) -> int:
        return 2 * number

    @agentrl.tool
    def divide(self, by: int) -> float:
        return 1 / by

    @agentrl.tool
    def echo(self, text: str) -> str:
        if text.startswith("no"):
            raise ValueError(text)
        return text

    @agentrl.tool
    def broken(self) -> str:
        raise agentrl.EnvironmentFault("the database is gone")

    @agentrl.tool
    def thread(self) -> str:
        return threading.current_thread().name

    def score(self, message: agentrl.Message) -> float | None:
        return {"right": 1.0, "unknown": None}.get(message.text, 0.0)


class Async(agentrl.ToolEnv):
    def __init__(self) -> None:
        self.together = asyncio.Barrier(2)

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("Go.")], {}

    @agentrl.tool
    async def meet(self, name: str) -> str:
        await asyncio.wait_for(self.together.wait(), 5)
        return f"{name} met"

    @agentrl.tool(timeout_s=0.01)
    async def wait(self) -> str:
        await asyncio.Event().wait()
        return "never"

    @agentrl.tool(timeout_s=0.01)
    def block(self) -> str:
        threading.Event().wait(30)
        return "late"

    async def score(self, message: agentrl.Message) -> float:
        return 0.5


def texts(observation: list[agentrl.Message]) -> list[str]:
    assert all(message.role == "tool" for message in observation)
    return [message.text for message in observation]


def test_each_call_is_answered_in_order_under_its_id() -> None:
    env = Plain()
    env.reset(seed=0)
    observation, reward, terminated, truncated, _ = env.step(
        calls(("double", {"number": 4}), ("double", {"number": 5}))
    )
    assert [(message["tool_call_id"], message.text) for message in observation] == [("call_0", "8"), ("call_1", "10")]
    assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize("arguments", ['{"number":', "[1]", "null", '"x"', ""])
def test_bad_arguments_are_told_to_the_model_and_the_episode_goes_on(arguments: str) -> None:
    """Case 39."""
    env = Plain()
    env.reset(seed=0)
    observation, _, terminated, truncated, _ = env.step(calls(("double", arguments)))
    assert texts(observation)[0].startswith("Error: the arguments")
    assert not terminated
    assert not truncated


def test_an_unknown_tool_is_told_to_the_model() -> None:
    env = Plain()
    env.reset(seed=0)
    assert texts(env.step(calls(("treble", {})))[0]) == ["Error: unknown tool 'treble'"]


def test_an_exception_of_a_tool_is_told_to_the_model_and_its_neighbours_are_answered() -> None:
    env = Plain()
    env.reset(seed=0)
    observation, *_ = env.step(calls(("divide", {"by": 0}), ("divide", {"by": 2})))
    assert texts(observation) == ["Error: ZeroDivisionError: division by zero", "0.5"]


@pytest.mark.parametrize(
    ("arguments", "told"), [('{"text": "a\\ud800"}', "a?"), ('{"text": "no\\udfff"}', "Error: no?")]
)
def test_half_a_character_in_the_arguments_comes_back_as_a_message_that_can_be_sent(arguments: str, told: str) -> None:
    env = Plain()
    env.reset(seed=0)
    assert texts(env.step(calls(("echo", arguments)))[0]) == [told]


def test_an_environment_fault_of_a_tool_is_not_the_models_business() -> None:
    env = Plain()
    env.reset(seed=0)
    with pytest.raises(agentrl.EnvironmentFault, match="the database is gone"):
        env.step(calls(("broken", {})))


@pytest.mark.parametrize(("answer", "reward"), [("right", 1.0), ("wrong", 0.0), ("unknown", None)])
def test_a_message_without_calls_ends_the_episode_with_its_score(answer: str, reward: float | None) -> None:
    env = Plain()
    env.reset(seed=0)
    assert env.step(answer) == ([], reward, True, False, {})


def test_one_round_too_many_truncates() -> None:
    env = Plain()
    env.reset(seed=0)
    call = calls(("double", {"number": 1}))
    ends = [env.step(call)[2:4] for _ in range(3)]
    assert ends == [(False, False), (False, False), (False, True)]
    env.reset(seed=0)
    assert env.step(call)[2:4] == (False, False)


def test_an_action_that_is_no_assistant_message_is_a_type_error() -> None:
    env = Plain()
    env.reset(seed=0)
    with pytest.raises(TypeError, match="assistant message"):
        env.step(agentrl.user("hello"))


def test_plain_tools_run_in_the_calling_thread() -> None:
    env = Plain()
    env.reset(seed=0)
    assert texts(env.step(calls(("thread", {})))[0]) == [threading.current_thread().name]


async def test_async_calls_of_one_message_run_at_the_same_time() -> None:
    env = Async()
    await env.reset(seed=0)
    observation, *_ = await env.step(calls(("meet", {"name": "a"}), ("meet", {"name": "b"})))
    assert texts(observation) == ["a met", "b met"]


async def test_slow_tools_end_at_their_own_timeout() -> None:
    env = Async()
    await env.reset(seed=0)
    observation, *_ = await env.step(calls(("wait", {}), ("block", {})))
    assert texts(observation) == ["Error: wait took longer than 0.01 s", "Error: block took longer than 0.01 s"]


async def test_an_async_score_is_awaited() -> None:
    env = Async()
    await env.reset(seed=0)
    assert await env.step("done") == ([], 0.5, True, False, {})


def test_async_methods_work_without_await_and_under_wrappers_outside_an_event_loop() -> None:
    env = gymnasium.wrappers.TimeLimit(Async(), max_episode_steps=1)
    observation, _ = env.reset(seed=0)
    assert observation == [agentrl.user("Go.")]
    observation, _, terminated, truncated, _ = env.step(calls(("meet", {"name": "a"}), ("meet", {"name": "b"})))
    assert texts(observation) == ["a met", "b met"]
    assert (terminated, truncated) == (False, True)


def test_what_is_async_is_known_by_method() -> None:
    assert [Async().is_async(name) for name in ("reset", "step", "close")] == [True, True, False]
    assert [Plain().is_async(name) for name in ("reset", "step", "close")] == [False, False, False]


def test_a_blocking_tool_with_a_timeout_in_a_plain_environment() -> None:
    class Slow(Plain):
        @agentrl.tool(timeout_s=0.01)
        def block(self) -> str:
            threading.Event().wait(30)
            return "late"

    env = Slow()
    env.reset(seed=0)
    assert texts(env.step(calls(("block", {})))[0]) == ["Error: block took longer than 0.01 s"]


# Order


class Ordered(agentrl.ToolEnv):
    """Plain tools that have to meet, and one that notes when it is run."""

    def __init__(self) -> None:
        self.together = threading.Barrier(2)
        self.seen: list[str] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return [agentrl.user("Go.")], {}

    @agentrl.tool(parallel=True)
    def meet(self, name: str) -> str:
        self.together.wait(5)
        return f"{name} met"

    @agentrl.tool
    def note(self, name: str) -> str:
        self.seen.append(f"{name} begins")
        self.seen.append(f"{name} ends")
        return name

    @agentrl.tool(parallel=False)
    async def slow_note(self, name: str) -> str:
        self.seen.append(f"{name} begins")
        await asyncio.sleep(0)
        self.seen.append(f"{name} ends")
        return name


def test_plain_tools_that_are_declared_parallel_run_at_the_same_time() -> None:
    env = Ordered()
    env.reset(seed=0)
    observation, *_ = env.step(calls(("meet", {"name": "a"}), ("meet", {"name": "b"})))
    assert texts(observation) == ["a met", "b met"]


def test_tools_that_are_not_parallel_run_one_after_the_other_in_the_order_of_the_message() -> None:
    """Beside parallel ones too, and async ones that were told so: state that they share is safe."""
    env = Ordered()
    env.reset(seed=0)
    env.step(calls(*(("slow_note" if index % 2 else "note", {"name": str(index)}) for index in range(6))))
    assert env.seen == [f"{index} {when}" for index in range(6) for when in ("begins", "ends")]


def test_answers_keep_the_order_of_their_calls_whatever_ran_when() -> None:
    env = Ordered()
    env.reset(seed=0)
    observation, *_ = env.step(
        calls(("note", {"name": "x"}), ("meet", {"name": "a"}), ("meet", {"name": "b"}), ("note", {"name": "y"}))
    )
    assert texts(observation) == ["x", "a met", "b met", "y"]
    assert [message["tool_call_id"] for message in observation] == ["call_0", "call_1", "call_2", "call_3"]


def test_each_environment_has_its_own_state() -> None:
    first, second = Ordered(), Ordered()
    for env in (first, second):
        env.reset(seed=0)
    first.step(calls(("note", {"name": "x"})))
    assert (first.seen, second.seen) == (["x begins", "x ends"], [])
