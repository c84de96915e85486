"""What a family of questions draws: tables, the question about them, and a query that answers it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from agentrl_envs.sql.database import Table

PEOPLE = (
    "Ada", "Bo", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hope", "Ian", "Joy", "Kai", "Leo", "Max", "Nora", "Otto", "Pia",
    "Rex", "Sol", "Tim", "Uma", "Vera", "Will", "Zoe", "Milo",
)  # fmt: skip
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """`query` gives the answer as the first value of its first row."""

    tables: tuple[Table, ...]
    text: str
    query: str
    distinct: str | None = None
    """A query whose values must all differ for the question to have one answer: what a ranking ranks by."""


def day(rng: random.Random, year: int) -> str:
    """A day of that year, as SQLite's date functions read it."""
    return f"{year}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}"
