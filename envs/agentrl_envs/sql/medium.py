"""Medium questions: one table of staff or of orders; two conditions, averages, groups, ranks, dates."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentrl_envs.sql.database import Table
from agentrl_envs.sql.question import MONTHS, PEOPLE, Question, day

TEAMS = ("sales", "design", "support", "research", "finance")
CITIES = ("Rome", "Oslo", "Lima", "Bonn", "Cairo", "Kyoto")
PRODUCTS = ("lamp", "chair", "desk", "clock", "rug", "shelf", "mirror")
YEAR = 2024

_RANKS = {"highest": 0, "second highest": 1, "third highest": 2}


def medium(rng: random.Random) -> Question:
    """A question whose answer is one value; rankings have no ties."""
    return rng.choice(_FAMILIES)(rng)


def _staff(rng: random.Random) -> Table:
    rows = tuple(
        (number, name, rng.choice(TEAMS), rng.choice(CITIES), rng.randint(30, 99) * 1000 + rng.randint(0, 99) * 10,
         day(rng, rng.randint(2010, YEAR)))
        for number, name in enumerate(rng.sample(PEOPLE, rng.randint(16, 24)), 1)
    )  # fmt: skip
    declared = ("id INTEGER PRIMARY KEY", "name TEXT", "team TEXT", "city TEXT", "salary INTEGER", "started TEXT")
    return Table("staff", declared, rows)


def _orders(rng: random.Random) -> Table:
    rows = tuple(
        (number, rng.choice(PEOPLE), rng.choice(PRODUCTS), rng.randint(1, 9), rng.randint(500, 9999) / 100,
         day(rng, YEAR))
        for number in range(1, rng.randint(200, 300))
    )  # fmt: skip
    declared = ("id INTEGER PRIMARY KEY", "customer TEXT", "product TEXT", "quantity INTEGER", "price REAL", "day TEXT")
    return Table("orders", declared, rows)


def _average(rng: random.Random) -> Question:
    team, city = rng.choice(TEAMS), rng.choice(CITIES)
    return Question(
        (_staff(rng),),
        f"What is the average salary of the staff who are in the team {team} or in the city {city}, rounded to two "
        "decimals?",
        f"SELECT ROUND(AVG(salary), 2) FROM staff WHERE team = '{team}' OR city = '{city}'",
    )


def _rank(rng: random.Random) -> Question:
    rank, city = rng.choice(list(_RANKS)), rng.choice(CITIES)
    return Question(
        (_staff(rng),),
        f"Who has the {rank} salary of the staff who are not in {city}?",
        f"SELECT name FROM staff WHERE city <> '{city}' ORDER BY salary DESC LIMIT 1 OFFSET {_RANKS[rank]}",
        "SELECT salary FROM staff",
    )


def _team_by(rng: random.Random) -> Question:
    year = rng.randint(2012, 2021)
    word, order = rng.choice([("highest", "DESC"), ("lowest", "ASC")])
    total = f"SELECT team, SUM(salary) AS total FROM staff WHERE started >= '{year}-01-01' GROUP BY team"
    return Question(
        (_staff(rng),),
        f"Of the staff who started in {year} or later, which team has the {word} total salary?",
        f"{total} ORDER BY total {order}",
        f"SELECT total FROM ({total})",
    )


def _teams_with(rng: random.Random) -> Question:
    least = rng.randint(2, 6)
    return Question(
        (_staff(rng),),
        f"How many teams have at least {least} members?",
        f"SELECT COUNT(*) FROM (SELECT team FROM staff GROUP BY team HAVING COUNT(*) >= {least})",
    )


def _in_month(rng: random.Random) -> Question:
    month, product = rng.randint(1, 12), rng.choice(PRODUCTS)
    return Question(
        (_orders(rng),),
        f"How many pieces of the product {product} were ordered in {MONTHS[month - 1]} {YEAR}? Say 0 for none.",
        f"SELECT COALESCE(SUM(quantity), 0) FROM orders WHERE product = '{product}' AND day LIKE '{YEAR}-{month:02}-%'",
    )


def _revenue(rng: random.Random) -> Question:
    product, first = rng.choice(PRODUCTS), rng.randint(2, 11)
    return Question(
        (_orders(rng),),
        f"What is the revenue (quantity times price) of the product {product} from {MONTHS[first - 1]} {YEAR} on, "
        "rounded to two decimals?",
        "SELECT ROUND(SUM(quantity * price), 2) FROM orders "
        f"WHERE product = '{product}' AND day >= '{YEAR}-{first:02}-01'",
    )


def _customers_of(rng: random.Random) -> Question:
    product, price = rng.choice(PRODUCTS), rng.randint(10, 80)
    return Question(
        (_orders(rng),),
        f"How many different customers ordered the product {product} at a price over {price}?",
        f"SELECT COUNT(DISTINCT customer) FROM orders WHERE product = '{product}' AND price > {price}",
    )


_FAMILIES: tuple[Callable[[random.Random], Question], ...] = (
    _average,
    _rank,
    _team_by,
    _teams_with,
    _in_month,
    _revenue,
    _customers_of,
)
