"""Rewards by Python functions: in processes of their own, each failure its own item's."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.reward.config import FunctionConfig
from agentrl.reward.functions import RewardFunction, as_score
from agentrl.reward.protocol import Item, Score

SOURCE = """
import os, time

def length(item):
    return len(item.text)

async def later(item):
    return 0.5

def parts(item):
    return {"short": 1.0, "polite": 0.25}

def missing(item):
    return None

def ranks(items):
    order = sorted(items, key=lambda item: len(item.text))
    return [float(order.index(item)) for item in items]

def too_few(items):
    return [1.0]

def moody(item):
    if item.text == "raise":
        raise RuntimeError("no")
    if item.text == "spin":
        while True:
            pass
    if item.text == "late":
        raise TimeoutError("of its own")
    if item.text == "exit":
        os._exit(3)
    return 1.0
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


async def scores(module: Path, name: str, *texts: str, together: bool = False, **settings: object) -> dict[str, Score]:
    config = FunctionConfig.model_validate({"name": name, "function": f"{module}:{name}", **settings})
    items = [Item(id=f"e{index}", text=text) for index, text in enumerate(texts)]
    return await RewardFunction(config).score(items, together=together)


@pytest.mark.parametrize(("name", "reward"), [("length", 3.0), ("later", 0.5), ("parts", 1.25), ("missing", None)])
async def test_a_function_gives_a_number_parts_or_nothing(module: Path, name: str, reward: float | None) -> None:
    found = await scores(module, name, "abc")
    assert (found["e0"].reward, found["e0"].error) == (reward, None)


async def test_parts_are_kept(module: Path) -> None:
    assert (await scores(module, "parts", "x"))["e0"].components == {"short": 1.0, "polite": 0.25}


async def test_a_groups_function_is_given_all_of_it(module: Path) -> None:
    found = await scores(module, "ranks", "ccc", "a", "bb", together=True)
    assert [found[f"e{index}"].reward for index in range(3)] == [2.0, 0.0, 1.0]


async def test_a_groups_function_that_gives_too_few_assigns_nothing(module: Path) -> None:
    found = await scores(module, "too_few", "a", "b", together=True)
    assert [score.reward for score in found.values()] == [None, None]
    assert "gave 1 rewards for 2 items" in str(found["e0"].error)


async def test_a_function_that_raises_spins_or_exits_costs_its_own_item(module: Path) -> None:
    found = await scores(module, "moody", "raise", "exit", "fine")
    assert [found[f"e{index}"].reward for index in range(3)] == [None, None, 1.0]
    assert "RuntimeError: no" in str(found["e0"].error)
    assert found["e1"].error is not None
    spun = await scores(module, "moody", "spin", timeout_s=2.0)
    assert "took longer than 2 s" in str(spun["e0"].error)
    late = await scores(module, "moody", "late")
    assert "TimeoutError: of its own" in str(late["e0"].error)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("length", "is not of the form 'module:name' or"),
        ("mine.py:length", "there is no file"),
        ("agentrl.types:nothing", "there is no 'nothing' in it; it has"),
        ("agentrl.types:MIN_TRAIN_TEMPERATURE", "is a float; name a class or a function"),
    ],
)
def test_a_function_that_is_not_there_is_told_before_the_run(function: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RewardFunction(FunctionConfig(name="f", function=function))


@pytest.mark.parametrize(
    ("found", "said"),
    [("1.0", "give a number"), (float("nan"), "give a finite number"), (2.0, "outside of its bounds")],
)
def test_what_is_no_reward_is_refused(found: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_score(Item(id="a"), found, (0.0, 1.0))  # type: ignore[arg-type]


def test_a_dicts_own_reward_is_the_reward() -> None:
    scored = Score(id="a", reward=0.5, components={"style": 3.0})
    assert as_score(Item(id="a"), {"reward": 0.5, "style": 3.0}, None) == scored


def test_a_whole_score_is_the_items_whatever_its_id_and_its_calls_are_summed() -> None:
    talk = [{"role": "user"}, {"role": "assistant"}, {"role": "assistant"}]
    found = as_score(Item(id="a", messages=talk), Score(id="another", calls=[0.25, 0.5]), None)
    assert (found.id, found.reward, found.calls) == ("a", 0.75, [0.25, 0.5])


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Score(id="a", reward=float("inf")), "reward is inf"),
        (Score(id="a", reward=1.0, calls=[1.0]), "1 rewards for 0 assistant messages"),
        (Score(id="a", error="no idea"), "no idea"),
    ],
)
def test_a_whole_score_is_looked_at_as_a_services_is(found: Score, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        as_score(Item(id="a"), found, None)
