"""What a family of programming tasks draws: a signature, a description, a solution, and how to make test inputs."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Inputs = Callable[[random.Random], list[Any]]


@dataclass(frozen=True)
class Question:
    """`solution` is Python source that defines `name`; `inputs(rng)` makes the arguments of one test, as JSON has
    them: numbers, strings, booleans, None, and lists of these. So is what the solution returns."""

    name: str
    parameters: tuple[str, ...]
    description: str
    solution: str
    inputs: Inputs

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(self.parameters)})"


def question(signature: str, description: str, body: str, inputs: Inputs) -> Question:
    """A question whose solution has `body`, indented as it may be, under its `def` line."""
    name, _, rest = signature.partition("(")
    lines = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    parameters = tuple(part.strip() for part in rest.rstrip(")").split(","))
    return Question(name, parameters, description, f"def {signature}:\n{lines}", inputs)
