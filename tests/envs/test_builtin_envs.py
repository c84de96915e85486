"""What holds of every environment that comes with agentrl."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agentrl
import agentrl_envs
from agentrl.env import registry
from agentrl.messages import Message

agentrl_envs.register()
BUILT_IN = sorted(
    env_id for env_id, spec in gymnasium.registry.items() if str(spec.entry_point).startswith("agentrl_envs.")
)
SOME_TASKS = 3
Policy = Callable[[Sequence[Message]], Message | str]


def folder(env_id: str) -> Path:
    module = str(gymnasium.spec(env_id).entry_point).partition(":")[0]
    return Path(str(importlib.import_module(module).__file__)).parent


def reference(env: gymnasium.Env[Any, Any], env_id: str) -> Policy:
    """Its own where the answer is hidden from who reads the messages, else the module's beside it."""
    if hasattr(env.unwrapped, "reference"):
        return env.unwrapped.reference
    module = str(gymnasium.spec(env_id).entry_point).partition(":")[0].removesuffix(".env")
    return importlib.import_module(f"{module}.reference").reference


def played(env: gymnasium.Env[Any, Any], policy: Policy, **task: Any) -> float:
    messages, _ = env.reset(**task)
    total = 0.0
    for _ in range(100):
        action = policy(messages)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += float(reward or 0.0)
        if terminated or truncated:
            return total
        messages = [*messages, agentrl.assistant(action) if isinstance(action, str) else action, *observation]
    raise AssertionError("the episode did not end within 100 steps")


def test_the_environments_of_the_issue_are_there() -> None:
    names = ("Calculator", "MathWord", "PythonCode", "Shell", "Sql", "ToolShop", "WordGame")
    assert {f"agentrl/{name}-v0" for name in names} <= set(BUILT_IN)


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_gymnasiums_checker_passes_without_a_warning(env_id: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(env_id)
        check_env(env.unwrapped)
        env.close()


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_gymnasiums_time_limit_truncates_and_its_statistics_are_kept(env_id: str) -> None:
    env = gymnasium.make(env_id)
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.wrappers.TimeLimit(env, max_episode_steps=1))
    env.reset(seed=1)
    _, _, terminated, truncated, info = env.step("I do not know")
    assert terminated or truncated
    assert (info["episode"]["r"], info["episode"]["l"]) == (0.0, 1)
    env.close()


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("env_id", BUILT_IN)
def test_the_reference_solution_gets_full_marks_and_an_empty_answer_does_not(env_id: str, split: str) -> None:
    env = registry.make(env_id)
    for task in registry.tasks(env_id, split=split, seed=1, count=SOME_TASKS):
        chosen = {"seed": task.seed, "options": {**task.options, "split": split}}
        assert played(env, reference(env, env_id), **chosen) == 1.0
        assert played(env, lambda _: "", **chosen) < 1.0
    env.close()


@pytest.mark.parametrize("env_id", BUILT_IN)
def test_there_is_a_page_that_names_the_environment_and_how_to_try_it(env_id: str) -> None:
    page = (folder(env_id) / "README.md").read_text()
    assert page.startswith(f"# {env_id}\n")
    assert f"agentrl env play {env_id}" in page
