"""The worked examples of CONTRIBUTING.md work as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentrl import plugins
from agentrl.env import registry
from agentrl.reward.protocol import Item

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"


@pytest.fixture
def example(tmp_path: Path) -> Any:
    """Writes the one example that has these words to a file, and says where."""

    def write(words: str) -> Path:
        blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        [source] = [block for block in blocks if words in block]
        file = tmp_path / "contributed.py"
        file.write_text(source)
        return file

    return write


def test_the_environment_rewards_the_word_and_nothing_else(example: Any) -> None:
    env = registry.make(f"{example('class Echo')}:Echo")
    observation, _ = env.reset(seed=3)
    word = observation[0]["content"].removeprefix("Say ").removesuffix(".")
    assert env.step(word)[1] == 1.0
    env.reset(seed=3)
    assert env.step("")[1] == 0.0


async def test_the_reward_service_counts_words(example: Any) -> None:
    service = plugins.load("agentrl.rewards", f"{example('class Brevity')}:Brevity")(words=2)
    scores = await service.score([Item(id="a", text="two words"), Item(id="b", text="these are three")])
    await service.close()
    assert {score.id: score.reward for score in scores} == {"a": 1.0, "b": 0.0}


def test_the_algorithm_compares_each_with_the_others(example: Any) -> None:
    estimate = plugins.load("agentrl.advantages", f"{example('def ranks')}:ranks")
    assert estimate([9.0, 0.0, 0.5, None]) == [1.0, -1.0, 0.0, None]
    assert estimate([1.0, 1.0, 0.0]) == [0.5, 0.5, -1.0]
    assert estimate([1.0, None]) == [0.0, None]


async def test_the_engine_answers_what_it_is_told_to(example: Any) -> None:
    sampled = plugins.load("agentrl.engines", f"{example('async def sampled')}:sampled")
    assert await sampled() == ([5, 6, 7], 0)


def test_every_folder_and_file_that_it_names_is_there() -> None:
    named = re.findall(r"`((?:agentrl|envs|trainers|tests|docs)/[a-z_/.]+)`", PAGE.read_text())
    root = PAGE.parent
    assert named
    assert [name for name in named if not (root / name).exists()] == []
