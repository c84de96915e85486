"""An environment is a real gymnasium environment: made by id, checked, wrapped, enumerated."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

import agentrl
import agentrl_envs
from agentrl.env import registry
from agentrl.env.space import ActionSpace, ObservationSpace
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.reference import reference
from agentrl_envs.calculator.tasks import problem

CALCULATOR = "agentrl/Calculator-v0"
agentrl_envs.register()  # a second time: nothing happens


def write_env(path: Path, body: str = "") -> str:
    path.write_text(
        f"import agentrl\n{body}\nclass Mine(agentrl.ToolEnv):\n    def __init__(self, size=1): self.size = size\n"
    )
    return f"{path}:Mine"


def test_the_calculator_passes_gymnasiums_checker_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(CALCULATOR).unwrapped)


def test_gymnasiums_wrappers_work() -> None:
    env = gymnasium.make(CALCULATOR, max_episode_steps=1)
    env = gymnasium.wrappers.RecordEpisodeStatistics(env)
    env.reset(seed=1)
    *_, info = env.step("no idea")
    assert info["episode"]["r"] == 0.0


def test_a_step_before_reset_is_refused_by_gymnasium() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded):
        gymnasium.make(CALCULATOR).step("1")


@pytest.mark.parametrize("seed", range(20))
def test_the_reference_solution_of_the_calculator_gets_1_and_an_empty_answer_0(seed: int) -> None:
    env = Calculator()
    messages, _ = env.reset(seed=seed)
    while True:
        action = reference(messages)
        observation, reward, terminated, *_ = env.step(action)
        messages += [action, *observation]
        if terminated:
            break
    assert (reward, len(messages)) == (1.0, 4)
    env.reset(seed=seed)
    assert env.step("")[1:4] == (0.0, True, False)


def test_the_calculator_asks_what_the_task_says() -> None:
    asked, _ = Calculator().reset(seed=5, options={"split": "eval"})
    assert asked == [agentrl.user(problem(5, "eval").question)]


def test_calculator_tasks_are_distinct_repeatable_and_held_out() -> None:
    def problems(split: str, seed: int) -> list[str]:
        found = registry.tasks(CALCULATOR, split=split, seed=seed, count=300)
        return [problem(task.seed, task.split).expression for task in found]  # type: ignore[arg-type]

    train, held_out = problems("train", 0), problems("eval", 0)
    assert len(set(train)) == len(train) == 300
    assert not set(train) & set(held_out)
    assert train == problems("train", 0) != problems("train", 1)


def test_an_unknown_split_is_a_config_error() -> None:
    with pytest.raises(agentrl.ConfigError, match="'dev'"):
        list(registry.tasks(CALCULATOR, split="dev", seed=0, count=1))


class Careless(agentrl.Env):
    """Each split of it is a mistake that authors make."""

    @classmethod
    def tasks(cls, split: str, seed: int) -> Any:
        if split == "raises":
            raise KeyError("row")
        if split == "none":
            return None
        if split == "numbers":
            return [5]
        values = {"sets": {1, 2}, "numpy": np.int64(3)}
        return [agentrl.Task(id="t", seed=0, options={"value": values[split]})]


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ("raises", "KeyError: 'row'"),
        ("none", "'NoneType' object is not iterable"),
        ("numbers", "of type int; yield agentrl.Task"),
        ("sets", "the options of a task are no JSON: .*set"),
    ],
)
def test_tasks_that_fail_are_a_config_error_that_says_why(split: str, said: str) -> None:
    with pytest.raises(agentrl.ConfigError, match=f"gives no tasks for split '{split}': .*{said}"):
        list(registry.tasks(f"{__name__}:Careless", split=split, seed=0))


def test_options_of_tasks_become_what_json_carries() -> None:
    [task] = registry.tasks(f"{__name__}:Careless", split="numpy", seed=0)
    assert (task.options, type(task.options["value"])) == ({"value": 3}, int)


def test_tasks_carry_the_id_they_were_asked_under_and_unique_ids() -> None:
    tasks = list(registry.tasks(CALCULATOR, split="train", seed=3, count=50))
    assert {task.env_id for task in tasks} == {CALCULATOR}
    assert len({task.id for task in tasks}) == 50


class Finite(agentrl.Env):
    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterator[agentrl.Task]:
        rows = {"train": ["a", "b"], "empty": []}[split]
        return (agentrl.Task(id=row, seed=seed, options={"row": row}) for row in rows)


def test_a_finite_split_is_passed_over_again_under_new_ids() -> None:
    stream = registry.task_stream(f"{__name__}:Finite", split="train", seed=7)
    assert [(task.id, task.seed) for task in itertools.islice(stream, 5)] == [
        ("a", 7), ("b", 7), ("a@1", 8), ("b@1", 8), ("a@2", 9),
    ]  # fmt: skip


class Sized(agentrl.Env):
    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Any = None) -> Iterator[agentrl.Task]:
        return (agentrl.Task(id=str(index)) for index in range((env_kwargs or {}).get("size", 1)))


def test_tasks_may_depend_on_what_the_constructor_is_given() -> None:
    env_id = f"{__name__}:Sized"
    assert len(list(registry.tasks(env_id, split="train", seed=0, env_kwargs={"size": 3}))) == 3
    assert len(list(registry.tasks(env_id, split="train", seed=0))) == 1


def test_arguments_of_a_registration_reach_the_tasks_and_are_overruled_by_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("agentrl-test/Sized-v0", entry_point=f"{__name__}:Sized", kwargs={"size": 2})
    sizes = [
        len(list(registry.tasks("agentrl-test/Sized-v0", split="train", seed=0, env_kwargs=given)))
        for given in ({}, {"size": 3})
    ]
    assert sizes == [2, 3]


def test_a_stream_of_no_tasks_ends() -> None:
    assert list(registry.task_stream(f"{__name__}:Finite", split="empty", seed=0)) == []


def test_an_environment_is_made_from_a_file_with_its_arguments(tmp_path: Path) -> None:
    env_id = write_env(tmp_path / "my_env.py")
    assert registry.make(env_id, size=3).unwrapped.size == 3
    assert registry.env_class(env_id) is registry.env_class(env_id)


def test_tasks_of_a_file_name_it_so_that_a_worker_elsewhere_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_env(tmp_path / "near.py")
    monkeypatch.chdir(tmp_path)
    (task,) = registry.tasks("near.py:Mine", split="train", seed=0, count=1)
    monkeypatch.chdir("/")
    assert task.env_id == f"{tmp_path}/near.py:Mine"
    assert type(registry.make(task.env_id)).__name__ == "Mine"


def test_a_broken_plugin_is_named_and_costs_its_own_environments_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken = [EntryPoint(name, value, registry.PLUGIN_GROUP) for name, value in BROKEN.items()]
    own = entry_points(group=registry.PLUGIN_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [*broken, *own])
    registry._load_plugins.cache_clear()
    assert CALCULATOR in registry.known()
    for name, value in BROKEN.items():
        assert f"plug-in '{name}' ({value})" in caplog.text


BROKEN = {"gone": "no_such_module:register", "raises": "json:loads", "exits": "sys:exit"}  # loads wants an argument


@pytest.mark.parametrize(
    ("env_id", "said"),
    [
        ("agentrl/Nothing-v0", "known: agentrl/Calculator-v0"),
        ("no_such_module:Env", "cannot be imported"),
        ("agentrl.env.base:Environment", "no 'Environment' in it; it has ['Env']"),
        ("agentrl_envs.calculator.tasks:MAX_EXPRESSION", "name a class"),
        ("builtins:list", "not a gymnasium.Env"),
        ("mine.py", "names a file only; name the class in it as well: 'mine.py:Class'"),
    ],
)
def test_an_id_that_names_nothing_is_a_config_error_that_says_the_fix(env_id: str, said: str) -> None:
    with pytest.raises(agentrl.ConfigError) as refused:
        registry.make(env_id)
    assert said in str(refused.value)


def test_a_file_that_is_missing_or_raises_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(agentrl.ConfigError, match="there is no file"):
        registry.make(f"{tmp_path}/none.py:Mine")
    with pytest.raises(agentrl.ConfigError, match=r"ZeroDivisionError: division by zero \(line 2\)"):
        registry.make(write_env(tmp_path / "raises.py", "1 / 0"))
    with pytest.raises(agentrl.ConfigError, match=r"running .*exits.py raised SystemExit: 3"):
        registry.make(write_env(tmp_path / "exits.py", "import sys; sys.exit(3)"))


@pytest.mark.parametrize(
    ("body", "said"), [("import sys; sys.exit(3)", "SystemExit: 3"), ("syntax error(", "SyntaxError")]
)
def test_a_module_that_fails_at_import_is_a_config_error(
    body: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_env(tmp_path / "a_broken_env_module.py", body)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(agentrl.ConfigError, match=f"importing a_broken_env_module raised {said}"):
        registry.make("a_broken_env_module:Mine")


def test_a_registered_environment_is_made_bare_so_that_an_async_one_can_be_awaited() -> None:
    assert type(registry.make(CALCULATOR)) is Calculator


messages = st.builds(agentrl.Message, role=st.sampled_from(["system", "user", "assistant"]), content=st.text())


@given(st.lists(messages))
def test_any_list_of_chat_messages_is_an_observation(observation: list[agentrl.Message]) -> None:
    assert observation in ObservationSpace()


@pytest.mark.parametrize(
    "observation",
    [
        "text",
        None,
        [None],
        [{"role": "robot", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "tool", "content": "x"}],
    ],
)
def test_what_is_no_observation(observation: Any) -> None:
    assert observation not in ObservationSpace()
    assert ObservationSpace().fault(observation) is not None


@given(st.integers(0, 2**32 - 1))
def test_samples_are_in_their_space_and_follow_the_seed(seed: int) -> None:
    for make in (ActionSpace, ObservationSpace):
        first, second = make(seed).sample(), make(seed).sample()
        assert first == second
        assert first in make()


def test_actions_are_text_or_assistant_messages() -> None:
    assert "text" in ActionSpace()
    assert agentrl.assistant("text") in ActionSpace()
    assert agentrl.user("text") not in ActionSpace()
