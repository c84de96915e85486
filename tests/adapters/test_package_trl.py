"""Classes written for TRL's `environment_factory`: tools, reset, rewards; one of TRL's own among them."""

from __future__ import annotations

import types
import warnings
from typing import Any

import pytest
from adapter_episode import ADAPTERS, call, play, said
from transformers.utils import get_json_schema

import agentrl
from agentrl.env import registry
from agentrl.types import Task

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TRL calls its own package experimental
    from trl.experimental.openreward.environment import _RolloutEnvironment

TRL = f"{ADAPTERS}:TRL"


class Counter:
    """A counter that has to reach the target. Written as TRL's documentation asks for."""

    closed = 0

    def __init__(self, start: int = 0) -> None:
        self.start = start

    def reset(self, target: int, seed: int | None = None, **kwargs: Any) -> str:
        self.count, self.target, self.seed = self.start, target, seed
        return f" Reach {target}."

    def increment(self, step: int) -> int:
        """
        Increment the counter.

        Args:
            step: How much to add.

        Returns:
            The counter.
        """
        if step < 0:
            raise ValueError("upwards only")
        self.count += step
        return self.count

    async def look(self) -> str:
        """
        Look at the counter.

        Returns:
            What it shows.
        """
        return f"it shows {self.count}"

    def get_reward(self) -> float:
        return float(self.count == self.target)

    def _close(self) -> None:
        type(self).closed += 1


class Unscored(Counter):
    get_reward = None  # type: ignore[assignment]


class Silent:
    def reset(self, **kwargs: Any) -> None: ...


def brevity(completions: list[Any], target: list[int], environments: list[Any], **kwargs: Any) -> list[float | None]:
    assert target == [environments[0].target]
    last = completions[0][-1]
    return [None if last["content"] == "?" else 0.25 * (len(last["content"]) < 5)]


COUNTER = f"{__name__}:Counter"


def task(**options: Any) -> Task:
    return Task(id="t", env_id=TRL, seed=9, options={"prompt": [agentrl.user("Count.")], "target": 3, **options})


async def test_public_methods_are_tools_with_the_schema_that_trl_shows() -> None:
    _, session = await play(TRL, ["done"], task=task(), environment=COUNTER)
    shown = {tool["function"]["name"]: tool for tool in session.tools}
    assert shown == {"increment": get_json_schema(Counter().increment), "look": get_json_schema(Counter().look)}


async def test_the_environments_reward_is_the_episodes() -> None:
    right, _ = await play(TRL, [call("increment", '{"step": 3}'), "done"], task=task(), environment=COUNTER)
    wrong, _ = await play(TRL, [call("increment", '{"step": 2}'), "done"], task=task(), environment=COUNTER)
    assert (right.stop_reason, right.reward, wrong.reward) == ("done", 1.0, 0.0)
    assert said(right, 2) == "3"


async def test_what_reset_returns_is_added_to_the_last_message() -> None:
    episode, _ = await play(TRL, ["done"], task=task(), environment=COUNTER)
    assert said(episode, 0) == "Count. Reach 3."
    parts = [{"type": "text", "text": "Count."}]
    listed, _ = await play(TRL, ["done"], task=task(prompt=[agentrl.user(parts)]), environment=COUNTER)
    assert listed.messages[0]["content"] == [*parts, {"type": "text", "text": " Reach 3."}]


async def test_without_a_data_set_the_environment_says_it_all() -> None:
    only = Task(id="t", env_id=TRL, options={"target": 3})
    episode, _ = await play(TRL, ["done"], task=only, environment=COUNTER, instructions="You count.")
    assert [said(episode, 0), said(episode, 1)] == ["You count.", " Reach 3."]


async def test_async_methods_arguments_and_the_seed_reach_the_environment() -> None:
    env = registry.make(TRL, environment=COUNTER, kwargs={"start": 2})
    await env.reset(seed=9, options=task().options)
    answer, *_ = await env.step(call("look", "{}"))
    assert (answer[0].text, env._environment.seed) == ("it shows 2", 9)


@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        (call("increment", '{"step": -1}'), "Error: upwards only"),
        (call("increment", '{"steps": 1}'), "Error: Counter.increment() got an unexpected keyword argument 'steps'"),
        (call("get_reward", "{}"), "Error: unknown tool 'get_reward'"),
        (call("_close", "{}"), "Error: unknown tool '_close'"),
    ],
)
async def test_what_is_wrong_with_a_call_is_told(bad: Any, answer: str) -> None:
    episode, _ = await play(TRL, [bad, call("increment", '{"step": 3}'), "ok"], task=task(), environment=COUNTER)
    assert (said(episode, 2), episode.reward) == (answer, 1.0)


async def test_reward_functions_are_added_and_none_of_them_is_left_out() -> None:
    options = {"environment": COUNTER, "rewards": [f"{__name__}:brevity"]}
    both, _ = await play(TRL, [call("increment", '{"step": 3}'), "done"], task=task(), **options)
    one, _ = await play(TRL, [call("increment", '{"step": 3}'), "?"], task=task(), **options)
    assert (both.reward, one.reward) == (1.25, 1.0)


async def test_without_any_reward_it_is_missing() -> None:
    episode, _ = await play(
        TRL, ["done"], task=Task(id="t", options={"prompt": "Hm."}), environment=f"{__name__}:Silent"
    )
    assert (episode.stop_reason, episode.reward) == ("done", None)


async def test_it_is_closed_in_the_end() -> None:
    before = Counter.closed
    await play(TRL, ["done"], task=task(), environment=COUNTER)
    assert Counter.closed == before + 1


async def test_a_row_that_reset_does_not_take_is_no_wrong_answer() -> None:
    episode, _ = await play(TRL, ["done"], task=Task(id="t", options={"prompt": "?"}), environment=COUNTER)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "missing 1 required positional argument: 'target'" in str(episode.error)


class Undescribed(Counter):
    def jump(self, far: int) -> int:
        return far


async def test_a_tool_that_cannot_be_described_is_told() -> None:
    episode, _ = await play(TRL, ["done"], task=task(), environment=f"{__name__}:Undescribed")
    assert "a tool of Undescribed cannot be described: Cannot generate JSON schema for jump" in str(episode.error)


class Server:
    """Stands for an OpenReward server behind TRL's own environment class."""

    def get(self, name: str) -> Server:
        return self

    def session(self, **kwargs: Any) -> Server:
        return self

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: Any) -> None:
        self.left = True

    def get_prompt(self) -> list[Any]:
        return [types.SimpleNamespace(type="text", text="Press the button.")]

    def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        blocks = [types.SimpleNamespace(type="text", text=f"pressed {arguments['times']} times")]
        return types.SimpleNamespace(blocks=blocks, reward=float(arguments["times"] == 2), finished=True, metadata=None)


def openreward(**kwargs: Any) -> Any:
    fields = {"times": {"type": "integer", "description": "How often."}}
    press = {"name": "press", "description": "Press the button.",
             "input_schema": {"type": "object", "properties": fields, "required": ["times"]}}  # fmt: skip
    server = Server()
    return _RolloutEnvironment(base_url="http://127.0.0.1:9", _client=server, _env=server, _tool_specs=[press])


def outcome(environments: list[Any], **kwargs: Any) -> list[float | None]:
    return [environment.reward for environment in environments]


async def test_an_environment_class_of_trls_own_runs_unmodified() -> None:
    options = {"environment": f"{__name__}:openreward", "rewards": [f"{__name__}:outcome"]}
    row = Task(id="t", options={"prompt": "", "task_index": 0})
    right, session = await play(TRL, [call("press", '{"times": 2}'), "done"], task=row, **options)
    wrong, _ = await play(TRL, [call("press", '{"times": 1}'), "done"], task=row, **options)
    assert said(right, 0) == "Press the button."
    assert session.tools[0]["function"]["parameters"]["properties"]["times"]["type"] == "integer"
    assert said(right, 2).startswith("pressed 2 times")
    assert (right.reward, wrong.reward) == (1.0, 0.0)
