"""Programming tasks: which there are, which are held out, and their hidden tests."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentrl.env.code_tests import CallTest
from agentrl_envs import splits
from agentrl_envs.python_code.easy import easy
from agentrl_envs.python_code.hard import hard
from agentrl_envs.python_code.medium import medium
from agentrl_envs.python_code.question import Question
from agentrl_envs.splits import Split, require_split

TESTS = 12  # hidden tests of one task
EXAMPLES = 2  # shown above the easy level

Level = Literal["easy", "medium", "hard"]

LEVELS: dict[str, Callable[[random.Random], Question]] = {"easy": easy, "medium": medium, "hard": hard}


@dataclass(frozen=True)
class CodeProblem:
    """A function to be written, one solution, and the tests that decide. Only `prompt` is shown to the policy."""

    name: str
    prompt: str
    solution: str
    tests: tuple[CallTest, ...]


def problem(seed: int, split: str = "train", level: Level = "easy") -> CodeProblem:
    """The problem of `split` that `seed` stands for. Raises ValueError for another split or level."""
    require_split(split, "the code environment")
    require_level(level)
    rng = random.Random(seed)
    while True:
        drawn = LEVELS[level](rng)
        if split_of(drawn) != split:
            continue
        tests = _tests(drawn, rng, TESTS + EXAMPLES)
        if len({repr(test.expected) for test in tests[:TESTS]}) > 1:  # else a constant would pass
            return CodeProblem(drawn.name, _prompt(drawn, level, tests[TESTS:]), drawn.solution, tests[:TESTS])


def given_problem(options: Mapping[str, Any]) -> CodeProblem | None:
    """What a task's options "prompt", "name" and "tests" say; None when there are no "tests".

    `tests` are `{"arguments": [...], "expected": ...}`. Raises ValueError when something is missing.
    """
    if "tests" not in options:
        return None
    missing = [key for key in ("prompt", "name") if not options.get(key)]
    tests = options["tests"]
    if missing or not tests or not all({"arguments", "expected"} <= set(test) for test in tests):
        raise ValueError(
            "a task of one's own gives prompt, name (of the function) and tests, each with arguments and expected; "
            f"got {', '.join(options)}"
        )
    name = str(options["name"])
    made = tuple(CallTest(_call(name, test["arguments"]), test["expected"]) for test in tests)
    return CodeProblem(name, str(options["prompt"]), str(options.get("solution", "")), made)


def split_of(question: Question) -> Split:
    """A fifth of all functions is held out, by hash of what is asked: no seed can leak one into training."""
    return splits.split_of(f"{question.signature}\n{question.description}")


def require_level(level: str) -> None:
    """Raises ValueError for a level that there is not."""
    if level not in LEVELS:
        raise ValueError(f"the code environment has no level {level!r}; use one of {', '.join(LEVELS)}")


def _prompt(question: Question, level: Level, examples: tuple[CallTest, ...]) -> str:
    """Easy tasks without a word of help, for the context of a tiny policy is short."""
    if level == "easy":
        return f"Write {question.signature}: {question.description}."
    shown = [f"{test.call} == {test.expected!r}" for test in examples]
    return "\n".join(
        [
            f"Write the Python function {question.signature}: {question.description}.",
            "For example:",
            *shown,
            "Answer with the code of the function alone, or with one ```python block.",
        ]
    )


def _tests(question: Question, rng: random.Random, count: int) -> tuple[CallTest, ...]:
    """Inputs are drawn; what they should give comes from running the solution, which is our own code."""
    namespace: dict[str, Any] = {}
    exec(question.solution, namespace)
    function = namespace[question.name]
    drawn = [question.inputs(rng) for _ in range(count)]
    return tuple(CallTest(_call(question.name, arguments), function(*copy.deepcopy(arguments))) for arguments in drawn)


def _call(name: str, arguments: Sequence[Any]) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"
