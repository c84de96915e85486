"""Easy functions: one expression of one argument. Small enough for a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentrl_envs.python_code.question import Question

NAME = "f"
NUMBERS = ("x", "n", "k", "m")
LISTS = ("xs", "items", "values")
STRINGS = ("s", "word", "text")
CONSTANTS = (2, 99)  # the smallest and the largest in a description

_FIRST = {"add": ("add {c} to {p}", "+"), "sub": ("subtract {c} from {p}", "-"), "mul": ("multiply {p} by {c}", "*")}
_THEN = {"add": ("add {c}", "+"), "sub": ("subtract {c}", "-"), "mul": ("multiply by {c}", "*")}
_COMPARED = {"over": ">", "under": "<"}

Drawn = tuple[str, str, str, Callable[[random.Random], list[Any]]]
"""Parameter, description, the expression that solves it, and its test inputs."""


def easy(rng: random.Random) -> Question:
    """A function with one argument whose body is one return statement."""
    parameter, description, expression, inputs = rng.choice(_FAMILIES)(rng)
    return Question(NAME, (parameter,), description, f"def {NAME}({parameter}):\n    return {expression}", inputs)


def _arithmetic(rng: random.Random) -> Drawn:
    """Two steps, so that the order matters."""
    p, c, d = rng.choice(NUMBERS), _constant(rng), _constant(rng)
    (first, sign), (then, next_sign) = _FIRST[rng.choice(list(_FIRST))], _THEN[rng.choice(list(_THEN))]
    description = f"{first.format(c=c, p=p)}, then {then.format(c=d)}"
    return p, description, f"({p}{sign}{c}){next_sign}{d}", _integer


def _sum_where(rng: random.Random) -> Drawn:
    p, word, c = rng.choice(LISTS), rng.choice(list(_COMPARED)), _constant(rng)
    return p, f"the sum of the {p} {word} {c}", f"sum(i for i in {p} if i{_COMPARED[word]}{c})", _integers


def _count_where(rng: random.Random) -> Drawn:
    p, word, c = rng.choice(LISTS), rng.choice(list(_COMPARED)), _constant(rng)
    return p, f"how many of the {p} are {word} {c}", f"sum(1 for i in {p} if i{_COMPARED[word]}{c})", _integers


def _keep_where(rng: random.Random) -> Drawn:
    p, word, c = rng.choice(LISTS), rng.choice(list(_COMPARED)), _constant(rng)
    return p, f"the list of the {p} {word} {c}", f"[i for i in {p} if i{_COMPARED[word]}{c}]", _integers


def _each(rng: random.Random) -> Drawn:
    p, c = rng.choice(LISTS), _constant(rng)
    word, sign = rng.choice([("plus", "+"), ("minus", "-"), ("times", "*")])
    return p, f"the list of the {p}, each {word} {c}", f"[i{sign}{c} for i in {p}]", _integers


def _slice(rng: random.Random) -> Drawn:
    p, c = rng.choice(STRINGS), _constant(rng)
    description, expression = rng.choice(
        [
            (f"the first {c} letters of {p}", f"{p}[:{c}]"),
            (f"the last {c} letters of {p}", f"{p}[-{c}:]"),
            (f"{p}, {c} times in a row", f"{p}*{c}"),
        ]
    )
    return p, description, expression, _string


def _constant(rng: random.Random) -> int:
    return rng.randint(*CONSTANTS)


def _integer(rng: random.Random) -> list[Any]:
    return [rng.randint(-1000, 1000)]


def _integers(rng: random.Random) -> list[Any]:
    return [[rng.randint(0, 100) for _ in range(rng.randint(0, 30))]]


def _string(rng: random.Random) -> list[Any]:
    return ["".join(rng.choices("abcdefghij", k=rng.randint(0, 120)))]


_FAMILIES: tuple[Callable[[random.Random], Drawn], ...] = (
    _arithmetic,
    _arithmetic,
    _sum_where,
    _count_where,
    _keep_where,
    _each,
    _slice,
)
