"""A question about a small database that the policy can only see through a read-only SQL tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import agentrl
from agentrl.env.base import ResetResult
from agentrl_envs.splits import distinct
from agentrl_envs.sql.database import Database
from agentrl_envs.sql.reference import reference
from agentrl_envs.sql.tasks import GivenProblem, Level, SqlProblem, given_problem, is_right, problem, require_level

PASS = 20_000
"""Tasks drawn in one pass over a split; the few that repeat a question over the same rows are left out."""


class Sql(agentrl.ToolEnv):
    """Reward 1 for the right value and nothing else in the last message, 0 for any other."""

    max_rounds = 8
    asked: SqlProblem | GivenProblem

    def __init__(self, level: Level = "easy") -> None:
        """`level`: "easy" (one table, one condition), "medium" (grouping, ordering, averages) or "hard" (joins)."""
        require_level(level)
        self._level = level
        self._database: Database | None = None

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[agentrl.Task]:
        """Tasks that differ in question or rows; a fifth of all questions is held out as "eval", by their hash."""
        level = (env_kwargs or {}).get("level", "easy")
        return distinct(super().tasks(split, seed), lambda task: problem(task.seed, split, level), drawn=PASS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The question that `seed` stands for.

        `options`: "split" ("train" when it is not given) and "level" (the constructor's); or a question of one's own:
        "database" (the path of an SQLite file), "question" and "answer".
        """
        super().reset(seed=seed)
        drawn = int(self.np_random.integers(2**53)) if seed is None else seed
        given = options or {}
        self.asked = given_problem(given) or problem(
            drawn, given.get("split", "train"), given.get("level", self._level)
        )
        self.close()
        self._database = self.asked.open()
        return [agentrl.user(self.asked.prompt(self._database))], {}

    @agentrl.tool
    def sql(self, query: str) -> str:
        """Run one SELECT on the database (SQLite).

        Args:
            query: The SELECT statement.
        """
        if self._database is None:
            raise agentrl.EnvironmentFault("the SQL tool was called before reset")
        return self._database.query(query)

    def score(self, message: agentrl.Message) -> float:
        return float(is_right(message.text, self.asked.answer))

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def reference(self, messages: Sequence[agentrl.Message]) -> agentrl.Message:
        """The solution of the current task, as a policy. Raises ValueError for a question of one's own."""
        if isinstance(self.asked, GivenProblem):
            raise ValueError("this question came with its answer, not with a query; there is no reference solution")
        return reference(self.asked, messages)
