"""SQL tasks: which there are, which are held out, and what counts as the right answer."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from agentrl_envs import splits
from agentrl_envs.splits import Split, require_split
from agentrl_envs.sql.database import Database, Table, Value
from agentrl_envs.sql.easy import easy
from agentrl_envs.sql.hard import hard
from agentrl_envs.sql.medium import medium
from agentrl_envs.sql.question import Question

Level = Literal["easy", "medium", "hard"]

LEVELS: dict[str, Callable[[random.Random], Question]] = {"easy": easy, "medium": medium, "hard": hard}
_HELP = "Use the sql tool (SQLite; days are texts such as 2024-03-09), then answer with the value alone."
_NUMBER = re.compile(r"[+-]?[0-9]{1,15}(\.[0-9]{1,15})?")
_THOUSANDS = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?")


@dataclass(frozen=True)
class SqlProblem:
    """A database, a question about it, and one query that answers it."""

    level: Level
    tables: tuple[Table, ...]
    question: str
    query: str

    def open(self) -> Database:
        """A database of one's own."""
        return Database.of(self.tables)

    def prompt(self, database: Database) -> str:
        """The tables and the question; easy ones without a word of help, for the context of a tiny policy is short."""
        lines = [*database.signatures, self.question]
        return "\n".join(lines if self.level == "easy" else [*lines, _HELP])

    @cached_property
    def answer(self) -> Value:
        with closing(self.open()) as database:
            return database.value(self.query)


@dataclass(frozen=True)
class GivenProblem:
    """A question of somebody's own about an SQLite file, with its answer."""

    path: Path
    question: str
    answer: Value

    def open(self) -> Database:
        return Database.at(self.path)

    def prompt(self, database: Database) -> str:
        return "\n".join([*database.signatures, self.question, _HELP])


def given_problem(options: Mapping[str, Any]) -> GivenProblem | None:
    """What a task's options "database", "question" and "answer" say; None when there is no "database".

    Raises ValueError for a database without a question or an answer.
    """
    if "database" not in options:
        return None
    missing = [key for key in ("question", "answer") if options.get(key) is None]
    if missing:
        raise ValueError(f"the task has a database but no {' and no '.join(missing)}; give database, question, answer")
    return GivenProblem(Path(options["database"]), str(options["question"]), options["answer"])


def problem(seed: int, split: str = "train", level: Level = "easy") -> SqlProblem:
    """The problem of `split` that `seed` stands for. Raises ValueError for another split or level."""
    require_split(split, "the SQL environment")
    require_level(level)
    rng = random.Random(seed)
    while True:
        drawn = LEVELS[level](rng)
        if split_of(drawn) != split:
            continue
        found = SqlProblem(level, drawn.tables, drawn.text, drawn.query)
        if found.answer is not None and not _has_ties(drawn):
            return found


def split_of(question: Question) -> Split:
    """A fifth of all questions is held out, by hash of the question and its query: whatever the rows are, no query
    that answers a held-out question answers one in training."""
    return splits.split_of(f"{question.text}\n{question.query}")


def require_level(level: str) -> None:
    """Raises ValueError for a level that there is not."""
    if level not in LEVELS:
        raise ValueError(f"the SQL environment has no level {level!r}; use one of {', '.join(LEVELS)}")


def is_right(text: str, answer: Value) -> bool:
    """Whether `text` is the answer and nothing else.

    Letter case, outer quotes, a last full stop and the way that a number is written (7, 7.0, 1,000) do not matter.
    """
    said, expected = _normal(text), _normal(str(answer))
    if _NUMBER.fullmatch(said) and _NUMBER.fullmatch(expected):
        return float(said) == float(expected)
    return said == expected


def _normal(text: str) -> str:
    said = " ".join(text.split()).casefold().removesuffix(".").strip("'\"`")
    return said.replace(",", "") if _THOUSANDS.fullmatch(said) else said


def _has_ties(drawn: Question) -> bool:
    if drawn.distinct is None:
        return False
    with closing(Database.of(drawn.tables)) as database:
        ranked = database.values(drawn.distinct)
    return len(set(ranked)) < len(ranked)
