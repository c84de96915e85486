"""One arithmetic question that is too hard to guess and easy with the tool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import agentrl
from agentrl.env.base import ResetResult
from agentrl_envs.calculator.tasks import CalculatorProblem, evaluate, problem
from agentrl_envs.splits import distinct

PASS = 100_000
"""Tasks drawn in one pass over a split; a few per cent of them repeat a problem and are left out."""


class Calculator(agentrl.ToolEnv):
    """Reward 1 for an answer that is the right number and nothing else, 0 for any other."""

    max_rounds = 8
    asked: CalculatorProblem

    @classmethod
    def tasks(cls, split: str, seed: int) -> Iterator[agentrl.Task]:
        """Distinct problems, as many as a pass finds; a fifth of all is held out as "eval", by hash of the problem."""
        return distinct(super().tasks(split, seed), lambda task: problem(task.seed, split), drawn=PASS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The question that `seed` stands for in the split `options["split"]` ("train" when it is not given)."""
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**53)) if seed is None else seed
        self.asked = problem(drawn, (options or {}).get("split", "train"))
        return [agentrl.user(self.asked.question)], {}

    @agentrl.tool
    def calculate(self, expression: str) -> str:
        """Evaluate an arithmetic expression of whole numbers.

        Args:
            expression: Digits, + - * and brackets, for example 12*(3+4).
        """
        return evaluate(expression)

    def score(self, message: agentrl.Message) -> float:
        return float(message.text.strip() == str(self.asked.answer))
