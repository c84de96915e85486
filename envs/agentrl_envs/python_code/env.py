"""A function is described, the policy writes it, and hidden tests decide in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import agentrl
from agentrl.env.base import ResetResult
from agentrl.env.code_env import CodeEnv, code_block
from agentrl.sandbox import Sandbox, SandboxLimits
from agentrl_envs.python_code.reference import reference
from agentrl_envs.python_code.tasks import CodeProblem, Level, given_problem, problem, require_level
from agentrl_envs.splits import distinct

PASS = 20_000
"""Tasks drawn in one pass over a split; the few that ask for the same function again are left out."""

MAX_CODE = 20_000  # characters

Reward = Literal["all", "share"]


class PythonCode(CodeEnv):
    """Reward 1 for code that passes every hidden test, else 0; or the share of them that it passes."""

    max_rounds = 8
    keeps_files = False
    program_limits = SandboxLimits(wall_s=10, cpu_s=3, memory_bytes=256 * 1024**2, processes=8)
    asked: CodeProblem

    def __init__(
        self,
        level: Level = "easy",
        reward: Reward = "all",
        run_tool: bool | None = None,
        sandbox: Sandbox | None = None,
    ) -> None:
        """
        Args:
            level: "easy" (one expression), "medium" (a loop or two) or "hard" (an algorithm).
            reward: "all" (1 when every hidden test passes) or "share" (of the tests that pass).
            run_tool: Whether the tool `python` is offered; left out, above the easy level.
            sandbox: Where code runs; this machine's by default. Raises SandboxUnavailable when it has none.
        """
        require_level(level)
        if reward not in ("all", "share"):
            raise ValueError(f"the code environment has no reward {reward!r}; use 'all' or 'share'")
        super().__init__(sandbox)
        self._level = level
        self._reward = reward
        offered = level != "easy" if run_tool is None else run_tool
        self.languages = ("python",) if offered else ()  # type: ignore[misc]  # a choice of each environment here

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[agentrl.Task]:
        """Functions that differ in what they do; a fifth of all is held out as "eval", by hash of what is asked."""
        level = (env_kwargs or {}).get("level", "easy")
        return distinct(super().tasks(split, seed), lambda task: problem(task.seed, split, level).prompt, drawn=PASS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The function that `seed` stands for.

        `options`: "split" ("train" when it is not given) and "level" (the constructor's); or a task of one's own:
        "prompt", "name" (of the function) and "tests", a list of `{"arguments": [...], "expected": ...}`.
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**53)) if seed is None else seed
        given = options or {}
        self.asked = given_problem(given) or problem(
            drawn, given.get("split", "train"), given.get("level", self._level)
        )
        return [agentrl.user(self.asked.prompt)], {}

    async def score(self, message: agentrl.Message) -> float:
        block = code_block(message.text)
        code = message.text if block is None else block
        if len(code) > MAX_CODE:
            return 0.0
        report = await self.run_tests(code, self.asked.tests)
        return report.passed / report.total if self._reward == "share" else float(report.all_passed)

    def reference(self, messages: Sequence[agentrl.Message]) -> agentrl.Message:
        """The solution of the current task, as a policy."""
        return reference(self.asked, messages)
