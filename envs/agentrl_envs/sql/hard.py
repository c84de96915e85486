"""Hard questions: a shop, a school or a library of three or four tables; joins, groups, missing rows, dates."""

from __future__ import annotations

import random
from collections.abc import Callable

from agentrl_envs.sql.database import Table
from agentrl_envs.sql.question import MONTHS, PEOPLE, Question, day

CITIES = ("Rome", "Oslo", "Lima", "Bonn")
CATEGORIES = ("garden", "kitchen", "office", "music")
TITLES = ("algebra", "botany", "chemistry", "drawing", "ethics", "French", "geology", "history")
GENRES = ("poetry", "travel", "crime", "science")
YEAR = 2024

Family = Callable[[random.Random], Question]


def hard(rng: random.Random) -> Question:
    """A question whose answer is one value; rankings have no ties."""
    return rng.choice(_FAMILIES)(rng)


def _shop(rng: random.Random) -> tuple[Table, ...]:
    people = rng.sample(PEOPLE, 16)
    customers = tuple((i, name, rng.choice(CITIES)) for i, name in enumerate(people, 1))
    products = tuple((i, f"article {i}", rng.choice(CATEGORIES), rng.randint(5, 60)) for i in range(1, 13))
    orders = tuple((i, rng.randint(1, 13), day(rng, YEAR)) for i in range(1, rng.randint(50, 80)))
    items = tuple(
        (order[0], product, rng.randint(1, 5))
        for order in orders
        for product in rng.sample(range(1, 12), rng.randint(1, 3))
    )
    return (
        Table("customers", ("id INTEGER PRIMARY KEY", "name TEXT", "city TEXT"), customers),
        Table("products", ("id INTEGER PRIMARY KEY", "name TEXT", "category TEXT", "price INTEGER"), products),
        Table("orders", ("id INTEGER PRIMARY KEY", "customer_id INTEGER", "day TEXT"), orders),
        Table("items", ("order_id INTEGER", "product_id INTEGER", "quantity INTEGER"), items),
    )


_SOLD = "items i JOIN orders o ON o.id = i.order_id JOIN products p ON p.id = i.product_id"


def _spender(rng: random.Random) -> Question:
    city, category = rng.choice(CITIES), rng.choice(CATEGORIES)
    spent = (
        f"SELECT c.name, SUM(i.quantity * p.price) AS spent FROM {_SOLD} JOIN customers c ON c.id = o.customer_id "
        f"WHERE c.city <> '{city}' AND p.category <> '{category}' GROUP BY c.id"
    )
    return Question(
        _shop(rng),
        f"Leaving out products of the category {category}, which customer who is not from {city} spent the most?",
        f"{spent} ORDER BY spent DESC",
        f"SELECT spent FROM ({spent})",
    )


def _category_month(rng: random.Random) -> Question:
    category, month = rng.choice(CATEGORIES), rng.randint(1, 12)
    return Question(
        _shop(rng),
        f"What is the revenue (quantity times price) of the category {category} in {MONTHS[month - 1]} {YEAR}? "
        "Say 0 for none.",
        f"SELECT COALESCE(SUM(i.quantity * p.price), 0) FROM {_SOLD} "
        f"WHERE p.category = '{category}' AND o.day LIKE '{YEAR}-{month:02}-%'",
    )


def _never(rng: random.Random) -> Question:
    category, price = rng.choice(CATEGORIES), rng.randint(10, 50)
    return Question(
        _shop(rng),
        f"How many customers never ordered a product of the category {category} with a price over {price}?",
        "SELECT COUNT(*) FROM customers WHERE id NOT IN "
        f"(SELECT o.customer_id FROM {_SOLD} WHERE p.category = '{category}' AND p.price > {price})",
    )


def _order_value(rng: random.Random) -> Question:
    first = rng.randint(1, 9)
    return Question(
        _shop(rng),
        f"What is the average value (quantity times price, summed over its items) of the orders from "
        f"{MONTHS[first - 1]} {YEAR} on, rounded to two decimals?",
        f"SELECT ROUND(AVG(value), 2) FROM (SELECT SUM(i.quantity * p.price) AS value FROM {_SOLD} "
        f"WHERE o.day >= '{YEAR}-{first:02}-01' GROUP BY o.id)",
    )


def _school(rng: random.Random) -> tuple[Table, ...]:
    people = rng.sample(PEOPLE, 20)
    students = tuple((i, name, rng.randint(1, 3)) for i, name in enumerate(people[:15], 1))
    courses = tuple((i, title, rng.choice(people[15:])) for i, title in enumerate(TITLES, 1))
    marks = tuple(
        (student[0], course, rng.choice([None, *range(20, 101)]))
        for student in students
        for course in rng.sample(range(1, len(TITLES) + 1), rng.randint(0, 6))
    )
    return (
        Table("students", ("id INTEGER PRIMARY KEY", "name TEXT", "year INTEGER"), students),
        Table("courses", ("id INTEGER PRIMARY KEY", "title TEXT", "teacher TEXT"), courses),
        Table("marks", ("student_id INTEGER", "course_id INTEGER", "mark INTEGER"), marks),
    )


def _best_student(rng: random.Random) -> Question:
    least, title = rng.randint(2, 4), rng.choice(TITLES)
    means = (
        "SELECT s.name, AVG(m.mark) AS mean FROM students s JOIN marks m ON m.student_id = s.id "
        f"JOIN courses c ON c.id = m.course_id WHERE c.title <> '{title}' "
        f"GROUP BY s.id HAVING COUNT(m.mark) >= {least}"
    )
    return Question(
        _school(rng),
        f"Leaving out {title} and courses without a mark (NULL), which student with at least {least} marks has the "
        "best average?",
        f"{means} ORDER BY mean DESC",
        f"SELECT mean FROM ({means})",
    )


def _better_in(rng: random.Random) -> Question:
    first, second = rng.sample(TITLES, 2)
    return Question(
        _school(rng),
        f"How many students have a higher mark in {first} than in {second}?",
        "SELECT COUNT(*) FROM marks a JOIN marks b ON a.student_id = b.student_id "
        "JOIN courses c ON c.id = a.course_id JOIN courses d ON d.id = b.course_id "
        f"WHERE c.title = '{first}' AND d.title = '{second}' AND a.mark > b.mark",
    )


def _no_marks(rng: random.Random) -> Question:
    title, year = rng.choice(TITLES), rng.randint(1, 3)
    return Question(
        _school(rng),
        f"How many students who are not in year {year} have no mark in {title}? A mark of NULL is none.",
        f"SELECT COUNT(*) FROM students WHERE year <> {year} AND id NOT IN (SELECT m.student_id FROM marks m "
        f"JOIN courses c ON c.id = m.course_id WHERE c.title = '{title}' AND m.mark IS NOT NULL)",
    )


def _library(rng: random.Random) -> tuple[Table, ...]:
    members = tuple(enumerate(rng.sample(PEOPLE, 14), 1))
    books = tuple((i, f"{rng.choice(GENRES)} {i}", rng.choice(GENRES)) for i in range(1, 25))
    loans = tuple((rng.randint(1, 22), rng.randint(1, 14), *_loan(rng)) for _ in range(rng.randint(40, 70)))
    return (
        Table("members", ("id INTEGER PRIMARY KEY", "name TEXT"), members),
        Table("books", ("id INTEGER PRIMARY KEY", "title TEXT", "genre TEXT"), books),
        Table("loans", ("book_id INTEGER", "member_id INTEGER", "taken TEXT", "returned TEXT"), loans),
    )


def _loan(rng: random.Random) -> tuple[str, str | None]:
    month, first = rng.randint(1, 11), rng.randint(1, 28)
    returned = f"{YEAR}-{month + 1:02}-{rng.randint(1, 28):02}"
    return f"{YEAR}-{month:02}-{first:02}", None if rng.random() < 0.3 else returned


def _unread(rng: random.Random) -> Question:
    genre, month = rng.choice(GENRES), rng.randint(3, 12)
    return Question(
        _library(rng),
        f"How many books that are not of the genre {genre} nobody took before {MONTHS[month - 1]} {YEAR}?",
        f"SELECT COUNT(*) FROM books b WHERE b.genre <> '{genre}' AND NOT EXISTS (SELECT 1 FROM loans l "
        f"WHERE l.book_id = b.id AND l.taken < '{YEAR}-{month:02}-01')",
    )


def _borrower(rng: random.Random) -> Question:
    genre, month = rng.choice(GENRES), rng.randint(1, 8)
    counts = (
        "SELECT m.name, COUNT(DISTINCT l.book_id) AS books FROM members m JOIN loans l ON l.member_id = m.id "
        f"JOIN books b ON b.id = l.book_id WHERE b.genre <> '{genre}' AND l.taken >= '{YEAR}-{month:02}-01' "
        "GROUP BY m.id"
    )
    return Question(
        _library(rng),
        f"Which is the largest number of different books, none of them {genre}, that one member took from "
        f"{MONTHS[month - 1]} {YEAR} on?",
        f"SELECT MAX(books) FROM ({counts})",
    )


def _longest(rng: random.Random) -> Question:
    genre, month = rng.choice(GENRES), rng.randint(1, 11)
    return Question(
        _library(rng),
        f"How many days did the longest finished loan of a book of the genre {genre} take, of the loans that began in "
        f"{MONTHS[month - 1]} {YEAR} or later? A loan that is not returned (NULL) is not finished.",
        "SELECT CAST(MAX(julianday(l.returned) - julianday(l.taken)) AS INTEGER) FROM loans l "
        f"JOIN books b ON b.id = l.book_id WHERE b.genre = '{genre}' AND l.taken >= '{YEAR}-{month:02}-01'",
    )


_FAMILIES: tuple[Family, ...] = (
    _spender,
    _category_month,
    _never,
    _order_value,
    _best_student,
    _better_in,
    _no_marks,
    _unread,
    _borrower,
    _longest,
)
