"""A word problem to be worked out in words; no tools, one answer."""

from __future__ import annotations

import re
from typing import Any

import agentrl
from agentrl.env.base import ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl_envs.math_word.tasks import WordProblem, problem

INSTRUCTION = "Work it out step by step. Write the final answer as a number on the last line."
_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


class MathWord(agentrl.Env):
    """Reward 1 when the last number of the answer's last line is right, else 0."""

    asked: WordProblem

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The problem that `seed` stands for in the split `options["split"]`, or the row of a task file.

        A row gives `question` and `answer`.
        """
        super().reset(seed=seed)
        given = options or {}
        if "question" in given:
            self.asked = WordProblem(str(given["question"]), int(given["answer"]))
        else:
            drawn = int(self.np_random.integers(2**53)) if seed is None else seed
            self.asked = problem(drawn, given.get("split", "train"))
        return [agentrl.user(f"{self.asked.question}\n{INSTRUCTION}")], {}

    def step(self, action: agentrl.Message | str) -> StepResult:
        return [], float(final_number(as_action(action).text) == self.asked.answer), True, False, {}


def final_number(text: str) -> float | None:
    """The last number of the last line that is not empty; None when there is none."""
    lines = text.strip().splitlines()
    found = _NUMBER.findall(lines[-1]) if lines else []
    return float(found[-1].replace(",", "")) if found else None
