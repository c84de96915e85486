"""reasoning-gym's data sets: its questions, its scorer, one seed one question, no seed in two splits."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import reasoning_gym
from adapter_episode import ADAPTERS, play, said

import agentrl
from agentrl.env import registry
from agentrl.messages import Message
from agentrl.types import Task

GYM = f"{ADAPTERS}:ReasoningGym"
LEGS: dict[str, Any] = {"dataset": "leg_counting", "config": {"max_animals": 3}}


def answer(seed: int, dataset: str = "leg_counting", **config: Any) -> str:
    return str(reasoning_gym.create_dataset(dataset, seed=seed, size=1, **config)[0]["answer"])


def task(seed: int) -> Task:
    return Task(id="t", env_id=GYM, seed=seed)


async def test_the_right_answer_in_its_tags_is_worth_1() -> None:
    right = answer(7, max_animals=3)
    episode, _ = await play(GYM, [f"Let me count. <answer>{right}</answer>"], task=task(7), **LEGS)
    assert (episode.stop_reason, episode.reward, episode.turns) == ("done", 1.0, 1)
    assert [message["role"] for message in episode.messages] == ["system", "user", "assistant"]
    assert "<answer>" in said(episode, 0)


@pytest.mark.parametrize("reply", ["<answer>-1</answer>", "no tags", ""])
async def test_a_wrong_answer_and_none_are_worth_0(reply: str) -> None:
    episode, _ = await play(GYM, [reply], task=task(7), **LEGS)
    assert (episode.stop_reason, episode.reward) == ("done", 0.0)


async def test_without_tags_the_whole_reply_is_the_answer() -> None:
    episode, _ = await play(GYM, [f" {answer(7, max_animals=3)}\n"], task=task(7), tagged=False, **LEGS)
    assert (episode.reward, [message["role"] for message in episode.messages]) == (1.0, ["user", "assistant"])


async def test_a_system_prompt_of_reasoning_gym_or_of_ones_own() -> None:
    named, _ = await play(GYM, ["?"], system_prompt="simple", **LEGS)
    own, _ = await play(GYM, ["?"], system_prompt="Tags: <answer>.", **LEGS)
    assert said(named, 0) == reasoning_gym.utils.SYSTEM_PROMPTS["simple"]
    assert said(own, 0) == "Tags: <answer>."


async def test_an_answer_that_the_scorer_chokes_on_is_a_wrong_one() -> None:
    options = {"dataset": "prime_factorization"}
    choking, _ = await play(GYM, ["<answer>seven</answer>"], task=task(7), **options)
    right, _ = await play(GYM, [f"<answer>{answer(7, 'prime_factorization')}</answer>"], task=task(7), **options)
    assert (choking.stop_reason, choking.reward, right.reward) == ("done", 0.0, 1.0)


async def test_a_scorer_that_is_broken_is_no_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = type(reasoning_gym.create_dataset("leg_counting", size=1))

    def broken(self: Any, answer: Any, entry: Any) -> float:
        raise RuntimeError("no scorer today")

    monkeypatch.setattr(dataset, "score_answer", broken)
    episode, _ = await play(GYM, ["<answer>1</answer>"], **LEGS)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert "no scorer today" in str(episode.error)


async def test_one_seed_is_one_question() -> None:
    asked = [said((await play(GYM, ["?"], task=task(seed), **LEGS))[0], 1) for seed in (3, 3, 4)]
    assert asked[0] == asked[1] != asked[2]


def test_no_seed_is_in_training_and_in_evaluation() -> None:
    def seeds(split: str) -> set[int]:
        found = registry.tasks(GYM, split=split, seed=0, count=500, env_kwargs=LEGS)
        return {task.seed for task in found}

    train, held_out = seeds("train"), seeds("eval")
    assert len(train) == len(held_out) == 500
    assert {seed % 2 for seed in train} == {0}
    assert {seed % 2 for seed in held_out} == {1}


def test_tasks_are_repeatable_and_their_order_follows_the_seed() -> None:
    def first(seed: int) -> list[int]:
        stream = registry.task_stream(GYM, split="train", seed=seed, env_kwargs=LEGS)
        return [task.seed for task in itertools.islice(stream, 5)]

    assert first(0) == first(0) != first(1)


async def test_a_mix_of_data_sets_is_scored_by_each_ones_own_scorer() -> None:
    names = ["leg_counting", "simple_equations"]
    options = {"dataset": "composite", "config": {"datasets": [{"name": name} for name in names]}}
    solved: set[str] = set()
    for seed in range(12):
        env = registry.make(GYM, **options)
        env.reset(seed=seed)
        entry = env._entry
        _, reward, *_ = env.step(Message(role="assistant", content=f"<answer>{entry['answer']}</answer>"))
        assert reward == 1.0
        solved.add(entry["metadata"]["source_dataset"])
    assert solved == set(names)


@pytest.mark.parametrize(
    "options",
    [{"dataset": "no_such_set"}, {"dataset": "leg_counting", "config": {"legs": 3}},
     {"dataset": "leg_counting", "config": {"max_animals": 0}}],
)  # fmt: skip
async def test_a_data_set_that_cannot_be_made_is_told_with_its_config(options: dict[str, Any]) -> None:
    episode, _ = await play(GYM, ["?"], **options)
    assert (episode.stop_reason, episode.reward) == ("env_error", None)
    assert f"reasoning-gym has no '{options['dataset']}' with config" in str(episode.error)


def test_every_data_set_scores_its_own_answer_through_the_adapter_as_the_package_does() -> None:
    """composite needs a config, which the test above gives."""
    slow = {"arc_agi", "arc_1d", "rearc"}  # they read their tasks from disk at each reset
    for name in sorted(set(reasoning_gym.factory.DATASETS) - slow - {"composite"}):
        env = registry.make(GYM, dataset=name, tagged=False)
        env.reset(seed=2)
        right = env._entry["answer"]
        text = "" if right is None else str(right).strip()
        theirs = env._dataset.score_answer(text, env._entry)
        assert env.step(agentrl.assistant(text))[1] == float(theirs), name
