"""SkyRL-gym's environments: its own GSM8K and SQL, one of ours, and rows that lack what they need."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
import skyrl_gym
from adapter_episode import ADAPTERS, play, said
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

import agentrl
from agentrl.env import registry
from agentrl.types import Task

SKYRL = f"{ADAPTERS}:SkyRL"
ROW: dict[str, Any] = {"prompt": "What is 6*7?", "reward_spec": {"ground_truth": "42"}, "extra_info": {}}


def task(**options: Any) -> Task:
    return Task(id="t", env_id=SKYRL, options={**ROW, **options})


async def test_gsm8k_scores_the_number_after_the_hashes() -> None:
    right, _ = await play(SKYRL, ["It is\n#### 42"], task=task(), environment="gsm8k")
    wrong, _ = await play(SKYRL, ["#### 41"], task=task(), environment="gsm8k")
    none, _ = await play(SKYRL, ["42"], task=task(), environment="gsm8k")
    assert [episode.reward for episode in (right, wrong, none)] == [1.0, 0.0, 0.0]
    assert (right.stop_reason, right.turns, said(right, 0)) == ("done", 1, "What is 6*7?")


async def test_a_game_of_several_turns_adds_its_rewards_and_ends_at_its_own_limit() -> None:
    options = {"environment": "gsm8k_multi_turn", "max_turns": 2}
    late, _ = await play(SKYRL, ["#### 41", "#### 42"], task=task(), **options)
    never, _ = await play(SKYRL, ["?", "?"], task=task(), **options)
    longer, _ = await play(SKYRL, ["?", "?", "#### 42"], task=task(max_turns=3), **options)
    assert late.reward == pytest.approx(1.0 + 0.2 / 2)
    assert (never.stop_reason, never.reward, never.turns) == ("done", 0.0, 2)
    assert (longer.reward, longer.turns) == (1.0, 3)
    assert "#### ANSWER" in said(late, 2)


async def test_text_to_sql_with_its_tool_and_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "spider/database/shop"
    folder.mkdir(parents=True)
    with sqlite3.connect(folder / "shop.sqlite") as database:
        database.execute("create table items (price int)")
        database.executemany("insert into items values (?)", [(3,), (4,)])
    row = {"db_id": "shop", "data": "spider", "reward_spec": {"ground_truth": "select sum(price) from items"}}
    replies = ["<think>look</think><sql>select * from items</sql>",
               "<think>sum</think><solution>select sum(price) from items</solution>"]  # fmt: skip
    options = {"environment": "text2sql", "config": {"db_path": str(tmp_path)}}
    right, _ = await play(SKYRL, replies, task=task(**row), **options)
    assert "3" in said(right, 2)
    assert (right.stop_reason, right.reward) == ("done", 1.0)


class Parrot(BaseTextEnv):
    """Wants its word twice; says nothing in between."""

    closed = 0

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.word = env_config.word
        if (extras or {}).get("broken"):
            raise KeyError("perch")

    def init(self, prompt: Any) -> Any:
        return [{"role": "system", "content": "Parrot."}, *prompt], {"word": self.word}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if action == "squawk":
            raise RuntimeError("it flew away")
        return BaseTextEnvStepOutput(
            observations=[],
            reward=None if action == "?" else 0.5 * (action == self.word),
            done=self.turns == 2,
            metadata={},
            postprocessed_action=action.upper(),
        )

    def close(self) -> None:
        type(self).closed += 1


PARROT: dict[str, Any] = {"environment": f"{__name__}:Parrot", "config": {"word": "hello"}}


async def test_an_environment_of_ones_own_is_named_by_its_class() -> None:
    before = Parrot.closed
    episode, _ = await play(SKYRL, ["hello", "hello"], task=task(), instructions="Repeat.", **PARROT)
    assert [said(episode, index) for index in range(3)] == ["Repeat.", "Parrot.", "What is 6*7?"]
    assert said(episode, 3) == "hello"  # as it was sampled
    assert said(episode, 4) == "There is nothing to see."
    assert (episode.reward, Parrot.closed) == (1.0, before + 1)


async def test_a_missing_reward_stays_missing() -> None:
    episode, _ = await play(SKYRL, ["hello", "?"], task=task(), **PARROT)
    assert (episode.stop_reason, episode.reward) == ("done", None)


async def test_an_environment_that_raises_is_no_wrong_answer_and_is_closed() -> None:
    before = Parrot.closed
    episode, _ = await play(SKYRL, ["squawk"], task=task(), **PARROT)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "it flew away" in str(episode.error)
    assert Parrot.closed == before + 1


@pytest.mark.parametrize(
    ("options", "row", "said"),
    [
        ({"environment": "gsm8k"}, {"prompt": "?"}, "reward_spec field is required"),
        (
            {"environment": "gsm8k"},
            {"reward_spec": {"ground_truth": "1"}},
            "got None; the data set's rows come from environment.train_tasks",
        ),
        (PARROT, {"prompt": "?", "broken": True}, "KeyError: 'perch'"),
    ],
)
async def test_a_row_that_lacks_what_the_environment_needs_is_told(options: Any, row: Any, said: str) -> None:
    episode, _ = await play(SKYRL, ["?"], task=Task(id="t", env_id=SKYRL, options=row), **options)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert said in str(episode.error)


def test_an_unknown_environment_is_a_config_error_that_names_the_known() -> None:
    with pytest.raises(agentrl.ConfigError, match="has no 'chess'; it has aime, gsm8k"):
        registry.make(SKYRL, environment="chess")
    assert "gsm8k" in skyrl_gym.registry
