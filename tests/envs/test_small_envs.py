"""math_word, word_game and tool_shop: the reference solution gets full marks, an empty answer none, and rules hold."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env

import agentrl
import agentrl_envs
from agentrl.env import registry
from agentrl.env.base import Env
from agentrl.messages import Message, assistant
from agentrl_envs.math_word.env import MathWord, final_number
from agentrl_envs.math_word.reference import reference as solve
from agentrl_envs.splits import split_of
from agentrl_envs.tool_shop.customer import PATIENCE, Customer
from agentrl_envs.tool_shop.env import ToolShop
from agentrl_envs.tool_shop.reference import reference as serve
from agentrl_envs.tool_shop.requests import CustomerRequest, request
from agentrl_envs.tool_shop.shop import Shop
from agentrl_envs.word_game.env import MAX_GUESSES, WordGame
from agentrl_envs.word_game.reference import reference as guess
from agentrl_envs.word_game.words import WORDS, marks

Policy = Callable[[Sequence[Message]], Message | str]
SMALL = {"agentrl/MathWord-v0": solve, "agentrl/WordGame-v0": guess, "agentrl/ToolShop-v0": serve}
agentrl_envs.register()


def played(env: Env, policy: Policy, **task: Any) -> tuple[float, list[Message]]:
    """The return of an episode and its messages."""
    messages, _ = env.reset(**task)
    total = 0.0
    for _ in range(100):
        action = policy(messages)
        observation, reward, terminated, truncated, _ = env.step(action)
        total += reward or 0.0
        messages = [*messages, assistant(action) if isinstance(action, str) else action, *observation]
        if terminated or truncated:
            return total, messages
    raise AssertionError("the episode did not end within 100 steps")


def scripted(actions: Sequence[Message | str]) -> Policy:
    left = iter(actions)
    return lambda _: next(left)


def call(name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return assistant(None, tool_calls=[{"id": "c", "type": "function", "function": function}])


@pytest.mark.parametrize("split", ["train", "eval"])
@pytest.mark.parametrize("env_id", SMALL)
def test_the_reference_solution_gets_full_marks_and_an_empty_answer_none(env_id: str, split: str) -> None:
    env = registry.make(env_id)
    for task in registry.tasks(env_id, split=split, seed=7, count=50):
        chosen = {"seed": task.seed, "options": {"split": split}}
        assert played(env, SMALL[env_id], **chosen)[0] == 1.0  # type: ignore[arg-type]
        assert played(env, lambda _: "", **chosen)[0] == 0.0  # type: ignore[arg-type]
    env.close()


@pytest.mark.parametrize("env_id", SMALL)
def test_gymnasiums_checker_and_wrappers_take_them(env_id: str) -> None:
    check_env(gymnasium.make(env_id).unwrapped)
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make(env_id, max_episode_steps=2))
    env.reset(seed=1)
    ended = False
    while not ended:
        *_, terminated, truncated, info = env.step("no idea")
        ended = terminated or truncated
    assert info["episode"]["r"] == 0.0


@pytest.mark.parametrize("env_id", SMALL)
def test_a_split_that_does_not_exist_is_refused_in_words(env_id: str) -> None:
    with pytest.raises(ValueError, match="has no split 'test'; use 'train' or 'eval'"):
        registry.make(env_id).reset(seed=1, options={"split": "test"})


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("12", 12),
        ("3 * 4 = 12", 12),
        ("12\n\n", 12),
        ("1,234.", 1234),
        ("-5", -5),
        ("2.5", 2.5),
        ("12\nnone", None),
        ("", None),
    ],
)
def test_the_final_number_is_the_last_of_the_last_line(text: str, number: float | None) -> None:
    assert final_number(text) == number


def test_a_word_problem_of_a_task_file_is_asked_as_it_stands() -> None:
    messages, _ = MathWord().reset(seed=0, options={"question": "What is 2 and 2?", "answer": 4, "split": "train"})
    assert messages[0].text.startswith("What is 2 and 2?\n")
    assert played(MathWord(), lambda _: "4", seed=0, options={"question": "Q?", "answer": 4})[0] == 1.0


@pytest.mark.parametrize(
    ("guessed", "secret", "said"),
    [("lane", "lane", "++++"), ("lane", "nail", "?+?-"), ("noon", "none", "++-?"), ("ball", "lamp", "-+?-")],
)
def test_each_letter_is_marked_as_often_as_the_word_has_it(guessed: str, secret: str, said: str) -> None:
    assert marks(guessed, secret) == said


def test_the_words_are_four_letters_long_distinct_and_a_part_is_held_out() -> None:
    assert {len(word) for word in WORDS} == {4}
    assert len(set(WORDS)) == len(WORDS)
    held_out = [word for word in WORDS if split_of(word) == "eval"]
    assert 0.15 < len(held_out) / len(WORDS) < 0.25


def test_a_message_that_is_no_word_uses_up_a_guess() -> None:
    total, messages = played(WordGame(), lambda _: "I do not know", seed=3)
    assert (total, sum(message.role == "assistant" for message in messages)) == (0.0, MAX_GUESSES)
    assert messages[2].text.startswith(f"That is not one word of 4 letters. {MAX_GUESSES - 1} left.")


def test_the_chance_of_a_game_is_the_seeds() -> None:
    assert played(WordGame(), scripted(WORDS), seed=11) == played(WordGame(), scripted(WORDS), seed=11)


def cancelling(*, allowed: bool) -> dict[str, Any]:
    """A task whose customer wants an order cancelled."""
    for seed in range(200):
        wanted = request(seed)
        shop = Shop(wanted.seed)
        if wanted.kind == "cancel" and wanted.allowed(shop) is allowed:
            shop.close()
            return {"seed": seed}
        shop.close()
    raise AssertionError("no such customer among 200")


def test_a_clerk_who_cancels_against_the_rules_gets_nothing() -> None:
    task = cancelling(allowed=False)
    order = request(task["seed"]).order_id
    said = [call("cancel_order", order_id=order), call("close_case", order_id=order, outcome="done"), "Goodbye!"]
    assert played(ToolShop(), scripted(said), **task)[0] == 0.0


def test_a_clerk_who_changes_more_than_was_asked_for_gets_nothing() -> None:
    task = cancelling(allowed=True)
    order = request(task["seed"]).order_id
    right = [call("cancel_order", order_id=order), call("close_case", order_id=order, outcome="done"), "Goodbye!"]
    more = [call("change_address", order_id=order, address="1 New Road"), *right]
    totals = [played(ToolShop(), scripted(said), **task)[0] for said in (right, more)]
    assert totals == [1.0, 0.0]


def test_what_the_shop_does_not_have_is_said_to_the_clerk() -> None:
    env = ToolShop()
    env.reset(seed=1)
    wrong = [call("get_order", order_id=1), call("close_case", order_id=1, outcome="lost")]
    texts = [env.step(message)[0][0].text for message in wrong]
    assert texts[0] == "Error: there is no order 1"
    assert texts[1].startswith("Error: argument 'outcome': Input should be 'done' or 'refused'")


def test_a_customer_answers_what_is_asked_and_leaves_when_told_goodbye_or_out_of_patience() -> None:
    wanted = CustomerRequest(1, "buy", "Ann Lee", "kettle", address="3 Mill Lane", quantity=2)
    customer = Customer(wanted, random.Random(0))
    assert customer.answer("Which product, and how many?") == "2, please. It is the kettle."
    assert customer.answer("Where to?") == "The address is 3 Mill Lane."
    assert customer.answer("All done. Goodbye!") is None
    waiting = Customer(wanted, random.Random(0))
    answers = [waiting.answer("One moment.") for _ in range(PATIENCE + 1)]
    assert [answer is None for answer in answers] == [False] * PATIENCE + [True]


def test_two_episodes_of_the_shop_share_nothing() -> None:
    first, second = ToolShop(), ToolShop()
    first.reset(seed=5)
    second.reset(seed=5)
    before = second.shop.contents()
    order = first.wanted.order_id or first.shop.find_orders(first.wanted.customer)[0]["order_id"]
    first.step(call("change_address", order_id=order, address="1 New Road"))
    assert first.shop.contents() != before == second.shop.contents()


def test_every_environment_says_what_it_is() -> None:
    for env_id in SMALL:
        assert agentrl.Env in registry.env_class(env_id).__mro__  # type: ignore[attr-defined]
        assert registry.env_class(env_id).__doc__
