"""Questions over SQLite: the tool reads and nothing else, within bounds; the right value counts."""

from __future__ import annotations

import itertools
import json
import sqlite3
import time
import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import registry
from agentrl.messages import Message, assistant
from agentrl_envs.sql.database import MAX_ROWS, Database, Table
from agentrl_envs.sql.env import Sql
from agentrl_envs.sql.question import Question
from agentrl_envs.sql.reference import reference
from agentrl_envs.sql.tasks import LEVELS, is_right, problem, split_of

SQL = "agentrl/Sql-v0"
SPLITS = ("train", "eval")
SEEDS = st.integers(min_value=0, max_value=2**53)
PETS = Table("pets", ("name TEXT", "age INTEGER"), (("Rex", 7), ("Milo", 3), ("Zoë", None)))


def call(query: str) -> Message:
    function = {"name": "sql", "arguments": json.dumps({"query": query})}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])


def solve(env: Sql, **options: Any) -> float | None:
    messages, _ = env.reset(**options)
    while True:
        action = reference(env.asked, messages)
        observed, reward, terminated, *_ = env.step(action)
        messages += [action, *observed]
        if terminated:
            return reward


def told(database: Database, query: str) -> str:
    """What the policy reads: the result, or why there is none."""
    try:
        return database.query(query)
    except ValueError as error:
        return str(error)


@pytest.fixture
def database():
    database = Database.of([PETS])
    yield database
    database.close()


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", LEVELS)
def test_the_reference_solves_60_tasks_of_every_split_and_level_and_an_empty_answer_none(
    level: str, split: str
) -> None:
    env = Sql(level=level)  # type: ignore[arg-type]
    tasks = list(registry.tasks(SQL, split=split, seed=1, count=60, env_kwargs={"level": level}))
    assert len(tasks) == 60
    for task in tasks:
        assert solve(env, seed=task.seed, options={**task.options, "split": split}) == 1.0
        env.reset(seed=task.seed, options={**task.options, "split": split})
        assert env.step("")[1:4] == (0.0, True, False)
    env.close()


def test_it_passes_gymnasiums_checker_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(SQL).unwrapped)


def test_a_seed_names_one_problem_on_every_machine() -> None:
    first = problem(0, "train")
    assert first.prompt(first.open()) == (
        "shops(name,city,age,size)\nlamps(name,city,stock,price)\nIn shops, what is the smallest age with city Lima?"
    )
    assert (first.query, first.answer) == ("SELECT MIN(age) FROM shops WHERE city='Lima'", 32)


@given(SEEDS, st.sampled_from(SPLITS), st.sampled_from(list(LEVELS)))
def test_a_problem_belongs_to_the_split_it_was_asked_for(seed: int, split: Any, level: Any) -> None:
    found = problem(seed, split, level)
    assert split_of(Question(found.tables, found.question, found.query)) == split
    assert found == problem(seed, split, level)


@pytest.mark.parametrize("level", LEVELS)
def test_no_query_of_the_training_split_answers_a_held_out_question(level: str) -> None:
    train, held_out = ({problem(seed, split, level).query for seed in range(400)} for split in SPLITS)  # type: ignore[arg-type]
    assert len(held_out) >= 40
    assert not train & held_out


def test_tasks_are_distinct_and_repeatable() -> None:
    first = list(registry.tasks(SQL, split="eval", seed=3, count=256))
    assert first == list(registry.tasks(SQL, split="eval", seed=3, count=256))
    assert len({problem(task.seed, "eval") for task in first}) == 256


def test_rankings_have_no_ties() -> None:
    """Who has the highest salary is one person: of 300 medium problems, each ranking's first two values differ."""
    for found in (problem(seed, "train", "medium") for seed in range(300)):
        if "ORDER BY salary" in found.query:
            salaries = sorted(row[4] for row in found.tables[0].rows)
            assert len(set(salaries)) == len(salaries)


def test_unknown_splits_and_levels_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no split 'test'; use 'train' or 'eval'"):
        problem(0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no level 'huge'; use one of easy, medium, hard"):
        Sql(level="huge")  # type: ignore[arg-type]


def test_two_environments_do_not_share_a_database() -> None:
    first, second = Sql(), Sql()
    first.reset(seed=1)
    second.reset(seed=2)
    table = first.asked.tables[0].name
    expected = "no such table" if table not in {each.name for each in second.asked.tables} else ""
    assert expected in second.step(call(f"SELECT COUNT(*) FROM {table}"))[0][0].text
    first.close()
    assert "Error" not in second.step(call(f"SELECT COUNT(*) FROM {second.asked.tables[0].name}"))[0][0].text
    second.close()


# -- what counts as right ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("7", 7), (" 7 \n", 7), ("7.", 7), ("7.0", 7), ("+7", 7), ("-3", -3), ("1,234", 1234), ("0.50", 0.5),
        ("Rome", "Rome"), ("rome", "Rome"), ("'Rome'.", "Rome"), ("12.3", 12.3), ("12.30", 12.3),
    ],
)  # fmt: skip
def test_the_right_value_counts_however_it_is_written(said: str, answer: Any) -> None:
    assert is_right(said, answer)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("", 7), ("8", 7), ("7 8", 7), ("The answer is 7.", 7), ("=7", 7), ("70", 7), ("7e0", 7), ("inf", 7),
        ("Rome Oslo", "Rome"), ("", "Rome"), ("12.31", 12.3), ("1,2", 12), ("1" * 400, 7), ("٧", 7),
    ],
)  # fmt: skip
def test_any_other_text_does_not(said: str, answer: Any) -> None:
    assert not is_right(said, answer)


# -- the tool ---------------------------------------------------------------------------------------------------------


def test_one_value_is_shown_bare_and_several_under_their_names(database: Database) -> None:
    assert database.query("SELECT age FROM pets WHERE name='Rex'") == "7"
    assert database.query("SELECT name, age FROM pets") == "name|age\nRex|7\nMilo|3\nZoë|NULL"
    assert database.query("SELECT name FROM pets WHERE age > 99") == "(no rows)"


def test_errors_are_in_words_and_the_episode_goes_on() -> None:
    env = Sql()
    env.reset(seed=0)
    told, reward, terminated, *_ = env.step(call("SELECT absent FROM shops"))
    assert ([each.text for each in told], reward, terminated) == (["Error: no such column: absent"], 0.0, False)
    told, *_ = env.step(call("SELEC 1"))
    assert [each.text for each in told] == ['Error: near "SELEC": syntax error']
    env.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO pets VALUES ('X', 1)", "UPDATE pets SET age = 0", "DELETE FROM pets", "DROP TABLE pets",
        "CREATE TABLE more (x)", "CREATE TEMP TABLE more (x)", "CREATE VIEW v AS SELECT 1", "ALTER TABLE pets ADD c",
        "ATTACH DATABASE '/etc/passwd' AS other", "ATTACH ':memory:' AS other", "DETACH main",
        "PRAGMA query_only = OFF", "PRAGMA table_info(pets)", "VACUUM INTO 'copy.db'", "BEGIN", "COMMIT",
        "SAVEPOINT here", "REINDEX", "ANALYZE", "SELECT load_extension('x')",
        "WITH new AS (SELECT 1) INSERT INTO pets SELECT 'X', 1", "EXPLAIN DELETE FROM pets",
        "SELECT * FROM pragma_database_list",
    ],
)  # fmt: skip
def test_nothing_but_select_runs_and_the_rows_stay(database: Database, statement: str) -> None:
    with pytest.raises(
        ValueError, match=r"only SELECT is allowed here|is not allowed here|no such table|send one SELECT"
    ):
        database.query(statement)
    assert database.query("SELECT COUNT(*), SUM(age) FROM pets") == "COUNT(*)|SUM(age)\n3|10"


def test_two_statements_are_refused(database: Database) -> None:
    with pytest.raises(ValueError, match="one statement at a time"):
        database.query("SELECT 1; DROP TABLE pets")


@pytest.mark.parametrize(
    "text", ["", "   ", "-- nothing", ";", "\0", "SELECT 1\0", "SELECT '\ud800'", "SELECT ?", "x" * 3000]
)
def test_what_is_no_query_is_an_error_in_words(database: Database, text: str) -> None:
    with pytest.raises(ValueError, match=r"^.+$"):
        database.query(text)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "


@pytest.mark.parametrize(
    "query",
    [
        ENDLESS + "SELECT COUNT(*) FROM n",
        ENDLESS + "SELECT i FROM n WHERE i < 0",
        ENDLESS + "SELECT i FROM n ORDER BY i DESC",
        ENDLESS + "SELECT group_concat(i) FROM n",
        ENDLESS + "SELECT length(zeroblob(15000) || i) FROM n ORDER BY 1",
        "SELECT COUNT(*) FROM " + ", ".join(f"pets p{i}" for i in range(30)),
        "SELECT length(hex(zeroblob(1000000000)))",
        "SELECT printf('%.*c', 1000000000, 'x')",
        "SELECT replace(hex(zeroblob(9000)), '0', hex(zeroblob(9000)))",
        "SELECT " + ", ".join(["trim(hex(zeroblob(9000)), hex(zeroblob(9000)))"] * 20),
        f"SELECT '{'a' * 900}' LIKE '{'%a' * 45}b'",
    ],
)
def test_a_query_without_end_or_measure_is_stopped_soon(database: Database, query: str) -> None:
    started = time.monotonic()
    assert len(told(database, query)) < 3000
    assert time.monotonic() - started < 20
    assert database.query("SELECT COUNT(*) FROM pets") == "3", "the next query runs"


def test_an_endless_query_is_told_so(database: Database) -> None:
    with pytest.raises(ValueError, match="does too much work"):
        database.query(ENDLESS + "SELECT COUNT(*) FROM n")


def test_long_results_are_cut_and_say_so(database: Database) -> None:
    shown = database.query(ENDLESS + "SELECT i FROM n LIMIT 1000").splitlines()
    assert (shown[:2], len(shown), shown[-1]) == (["1", "2"], MAX_ROWS + 1, "(more rows are left out)")
    assert database.query("SELECT hex(zeroblob(5000))").endswith("\n(cut off)")


@given(
    st.text() | st.lists(st.sampled_from([*"();,*%'\"-+/", "SELECT ", "pets ", "name ", "WHERE ", "1 "])).map("".join)
)
def test_the_tool_never_fails_in_another_way(query: str) -> None:
    database = Database.of([PETS])
    assert told(database, query)
    database.close()


def test_a_thousand_tasks_start_in_seconds() -> None:
    """About half a millisecond each; the bound is for a busy machine."""
    started = time.monotonic()
    env = Sql()
    for task in itertools.islice(Sql.tasks("train", 0), 1000):
        env.reset(seed=task.seed)
    env.close()
    assert time.monotonic() - started < 20


# -- one's own databases ----------------------------------------------------------------------------------------------


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "library.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE books (title TEXT, pages INTEGER)")
    connection.execute("INSERT INTO books VALUES ('Emma', 474)")
    connection.commit()
    connection.close()
    return path


def test_a_task_may_bring_its_own_database_question_and_answer(library) -> None:
    env = Sql()
    own = {"database": str(library), "question": "How long is Emma?", "answer": 474}
    (message,), _ = env.reset(options=own)
    assert message.text.startswith("books(title,pages)\nHow long is Emma?\n")
    (told,), *_ = env.step(call("SELECT pages FROM books"))
    assert told.text == "474"
    (told,), *_ = env.step(call("DELETE FROM books"))
    assert told.text == "Error: only SELECT is allowed here"
    assert env.step("474")[1:3] == (1.0, True)
    env.close()


def test_a_file_that_is_no_database_and_a_question_without_an_answer_are_refused(tmp_path) -> None:
    (tmp_path / "text.db").write_text("no database" * 100)
    own = {"question": "?", "answer": 1}
    for name in ("missing.db", "text.db"):
        with pytest.raises(ValueError, match=rf"{name} cannot be read as an SQLite database"):
            Sql().reset(options={"database": str(tmp_path / name), **own})
    with pytest.raises(ValueError, match="no question and no answer; give database, question, answer"):
        Sql().reset(options={"database": "x.db"})
