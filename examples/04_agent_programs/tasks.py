"""What the agents are asked and how their answers are graded. The agents see the question, never the answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import agentrl
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.tasks import problem


def tasks(split: str, seed: int) -> Iterator[agentrl.Task]:
    """The calculator's problems, a fifth of them held out."""
    for task in Calculator.tasks(split, seed):
        found = problem(task.seed, split)  # type: ignore[arg-type]
        options = {"question": found.question, "answer": str(found.answer)}
        yield agentrl.Task(id=task.id, seed=task.seed, options=options)


def grade(task: agentrl.Task, output: str | None) -> dict[str, Any]:
    """1 for the right number and nothing else. `output` is None when a limit ended the agent before it answered."""
    return {"right": float((output or "").strip() == task.options["answer"])}
