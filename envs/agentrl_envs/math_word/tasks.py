"""Word problems of two and three steps, generated from a seed, and which of them are held out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_envs.splits import Split, require_split, split_of

_NAMES = ("Ada", "Ben", "Chika", "Dora", "Emil", "Farah", "Goran", "Hana", "Ivo", "Jun", "Kofi", "Lena")
_THINGS = ("apples", "books", "candles", "marbles", "pencils", "shells", "stamps", "tickets")
_SHOPS = ("market", "corner shop", "fair", "museum")


@dataclass(frozen=True)
class WordProblem:
    """A question and the whole number that answers it."""

    question: str
    answer: int

    @property
    def split(self) -> Split:
        """A fifth of all problems is held out, by hash of the question: no seed can leak one into training."""
        return split_of(self.question)


def problem(seed: int, split: str = "train") -> WordProblem:
    """The problem of `split` that `seed` stands for; the same on every machine. Raises ValueError for another split."""
    require_split(split, "math_word")
    rng = random.Random(seed)
    while True:
        found = rng.choice(_FAMILIES)(rng)
        if found.split == split:
            return found


def _give_and_find(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    had, found = rng.randint(20, 90), rng.randint(5, 40)
    gave = rng.randint(2, had - 1)
    question = (
        f"{name} has {had} {thing}, gives {gave} of them away and then finds {found} more. "
        f"How many {thing} does {name} have now?"
    )
    return WordProblem(question, had - gave + found)


def _boxes(rng: random.Random) -> WordProblem:
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    boxes, each = rng.randint(3, 12), rng.randint(4, 25)
    broken = rng.randint(1, each)
    question = (
        f"{name} buys {boxes} boxes with {each} {thing} in each. {broken} of the {thing} are broken. "
        f"How many whole {thing} does {name} have?"
    )
    return WordProblem(question, boxes * each - broken)


def _change(rng: random.Random) -> WordProblem:
    name, thing, shop = rng.choice(_NAMES), rng.choice(_THINGS), rng.choice(_SHOPS)
    count, price = rng.randint(2, 9), rng.randint(2, 15)
    paid = count * price + rng.randint(1, 30)
    question = (
        f"At the {shop}, {name} buys {count} {thing} for {price} coins each and pays with {paid} coins. "
        f"How many coins does {name} get back?"
    )
    return WordProblem(question, paid - count * price)


def _sharing(rng: random.Random) -> WordProblem:
    first, second = rng.sample(_NAMES, 2)
    thing = rng.choice(_THINGS)
    friends, share = rng.randint(3, 9), rng.randint(3, 20)
    mine = rng.randint(1, friends * share - 1)
    question = (
        f"{first} has {mine} {thing} and {second} has {friends * share - mine}. They put them together and share them "
        f"equally among {friends} friends. How many {thing} does each friend get?"
    )
    return WordProblem(question, share)


def _saving(rng: random.Random) -> WordProblem:
    name = rng.choice(_NAMES)
    weeks, weekly, start = rng.randint(3, 12), rng.randint(3, 20), rng.randint(0, 50)
    spent = rng.randint(1, weeks * weekly)
    question = (
        f"{name} has {start} coins and saves {weekly} coins a week for {weeks} weeks, then spends {spent}. "
        f"How many coins are left?"
    )
    return WordProblem(question, start + weeks * weekly - spent)


_FAMILIES: tuple[Callable[[random.Random], WordProblem], ...] = (_give_and_find, _boxes, _change, _sharing, _saving)
