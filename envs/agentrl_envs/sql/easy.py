"""Easy questions: one table, which the question names, and one condition at most. Small enough for a tiny policy."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentrl_envs.sql.database import Table
from agentrl_envs.sql.question import PEOPLE, Question

TABLES = ("pets", "cars", "toys", "trees", "boats", "books", "shops", "lamps")
NUMBERS = ("age", "price", "size", "score", "stock", "speed")
CATEGORIES = {
    "color": ("red", "blue", "green", "black", "white"),
    "city": ("Rome", "Oslo", "Lima", "Bonn", "Cairo"),
    "kind": ("old", "new", "fast", "slow", "rare"),
}
ROWS = (12, 24)  # the fewest and the most, so that a count is hard to guess

_AGGREGATES = {"largest": "MAX", "smallest": "MIN", "total": "SUM"}
_COMPARED = {"over": ">", "under": "<"}


def easy(rng: random.Random) -> Question:
    """Two tables and a question about one of them."""
    names = rng.sample(TABLES, 2)
    tables = tuple(_table(rng, name) for name in names)
    question, query = rng.choice(_FAMILIES)(rng, rng.choice(tables))
    return Question(tables, question, query)


def _table(rng: random.Random, name: str) -> Table:
    """Text columns `name` and one of the categories, then two of the numbers (1 to 99)."""
    category = rng.choice(list(CATEGORIES))
    numbers = rng.sample(NUMBERS, 2)
    rows = tuple(
        (each, rng.choice(CATEGORIES[category]), rng.randint(1, 99), rng.randint(1, 99))
        for each in rng.sample(PEOPLE, rng.randint(*ROWS))
    )
    return Table(name, ("name TEXT", f"{category} TEXT", *(f"{number} INTEGER" for number in numbers)), rows)


def _lookup(rng: random.Random, table: Table) -> tuple[str, str]:
    column, name = rng.choice(table.columns[1:]), rng.choice(table.rows)[0]
    return f"In {table.name}, what is the {column} of {name}?", f"SELECT {column} FROM {table.name} WHERE name='{name}'"


def _count_category(rng: random.Random, table: Table) -> tuple[str, str]:
    column, value = table.columns[1], rng.choice(table.rows)[1]
    return (
        f"In {table.name}, how many have {column} {value}?",
        f"SELECT COUNT(*) FROM {table.name} WHERE {column}='{value}'",
    )


def _count_compared(rng: random.Random, table: Table) -> tuple[str, str]:
    column, word, bound = rng.choice(table.columns[2:]), rng.choice(list(_COMPARED)), rng.randint(10, 89)
    return (
        f"In {table.name}, how many have {column} {word} {bound}?",
        f"SELECT COUNT(*) FROM {table.name} WHERE {column}{_COMPARED[word]}{bound}",
    )


def _aggregate(rng: random.Random, table: Table) -> tuple[str, str]:
    column, word = rng.choice(table.columns[2:]), rng.choice(list(_AGGREGATES))
    return f"In {table.name}, what is the {word} {column}?", f"SELECT {_AGGREGATES[word]}({column}) FROM {table.name}"


def _aggregate_category(rng: random.Random, table: Table) -> tuple[str, str]:
    column, word, value = rng.choice(table.columns[2:]), rng.choice(list(_AGGREGATES)), rng.choice(table.rows)[1]
    return (
        f"In {table.name}, what is the {word} {column} with {table.columns[1]} {value}?",
        f"SELECT {_AGGREGATES[word]}({column}) FROM {table.name} WHERE {table.columns[1]}='{value}'",
    )


_FAMILIES: tuple[Callable[[random.Random, Table], tuple[str, str]], ...] = (
    _lookup,
    _lookup,
    _count_category,
    _count_compared,
    _aggregate,
    _aggregate_category,
)
