"""Written answers to easy programming tasks, right and wrong, for supervised warm starts.

Deterministic by the given generator. Each fault is a choice at one place, so that a policy gradient can tell it from
the right way; names and numbers are always copied well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from agentrl.messages import assistant, user
from agentrl_envs.python_code.tasks import CodeProblem, problem
from agentrl_envs.transcripts import Behaviour, Mix, Transcript, drawn_from

WARM_START: Mix = {"correct": 0.33, "no return": 0.18, "syntax": 0.18, "operator": 0.18, "prose": 0.13}


def transcript(rng: random.Random, mix: Mix) -> Transcript[CodeProblem]:
    """One episode on an easy training problem, its behaviour drawn from `mix` (weights by behaviour)."""
    behaviour = drawn_from(mix, rng)
    asked = problem(rng.getrandbits(31), "train", "easy")
    return Transcript(behaviour, asked, [user(asked.prompt), assistant(_BEHAVIOURS[behaviour](rng, asked))])


def _correct(rng: random.Random, asked: CodeProblem) -> str:
    return asked.solution


def _no_return(rng: random.Random, asked: CodeProblem) -> str:
    """Computes the right value and does not give it back."""
    head, expression = asked.solution.split("return ")
    return head + rng.choice([expression, f"print({expression})", f"result = {expression}"])


def _syntax(rng: random.Random, asked: CodeProblem) -> str:
    """Python that does not compile, or a name that the tests do not know."""
    good = asked.solution
    return rng.choice([good.replace("):", ")"), good.replace("    return", "return"), good.replace("def ", "fun ")])


def _operator(rng: random.Random, asked: CodeProblem) -> str:
    """Another function than the one that was asked for."""
    signs = {"+": "-", "-": "+", "*": "+", "<": ">", ">": "<", "[:": "[-", ")*": ")+"}
    head, body = asked.solution.split("return ")
    return f"{head}return " + re.sub(r"\[:|[-+*<>]", lambda found: signs[found[0]], body, count=1)


def _prose(rng: random.Random, asked: CodeProblem) -> str:
    """Talks instead of writing code, or talks around it."""
    return rng.choice(["I cannot do that.", f"Here is the code: {asked.solution}", f"The answer is {asked.name}."])


_BEHAVIOURS: dict[Behaviour, Callable[[random.Random, CodeProblem], str]] = {
    "correct": _correct,
    "no return": _no_return,
    "syntax": _syntax,
    "operator": _operator,
    "prose": _prose,
}
