"""Written SQL episodes, right and wrong, for supervised warm starts. Deterministic by the given generator.

Each fault is a choice at one place: names and numbers are always copied well, guesses are drawn without a look at the
answer, and a policy gradient can tell each fault from the right way.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from contextlib import closing

from agentrl.messages import Message, assistant, tool, user
from agentrl_envs.sql.easy import CATEGORIES
from agentrl_envs.sql.tasks import SqlProblem, problem
from agentrl_envs.transcripts import Behaviour, Mix, Transcript, broken_calls, drawn_from, wordy

WARM_START: Mix = {"correct": 0.33, "guess": 0.20, "malformed": 0.14, "rejected": 0.09, "query": 0.12, "copy": 0.12}


def transcript(rng: random.Random, mix: Mix) -> Transcript[SqlProblem]:
    """One episode on an easy training problem, its behaviour drawn from `mix` (weights by behaviour)."""
    behaviour = drawn_from(mix, rng)
    asked = problem(rng.getrandbits(31), "train", "easy")
    with closing(asked.open()) as database:
        question = user(asked.prompt(database))
    return Transcript(behaviour, asked, [question, *_BEHAVIOURS[behaviour](rng, asked)])


def tool_call(query: str) -> str:
    """The well-formed call, as the model has to write it."""
    return f'<tool_call>\n{{"name":"sql","arguments":{{"query":{json.dumps(query)}}}}}\n</tool_call>'


def _correct(rng: random.Random, asked: SqlProblem) -> list[Message]:
    return [*_called(asked, asked.query), assistant(str(asked.answer))]


def _guess(rng: random.Random, asked: SqlProblem) -> list[Message]:
    words = [word for values in CATEGORIES.values() for word in values]
    return [assistant(rng.choice(words) if rng.random() < 0.2 else str(rng.randint(100, 999)))]


def _query(rng: random.Random, asked: SqlProblem) -> list[Message]:
    """Asks the database for something else, and copies its result faithfully."""
    if re.search("[<>]", asked.query):
        wrong = asked.query.translate(str.maketrans("<>", "><"))
    elif "COUNT" in asked.query:
        wrong = asked.query.partition(" WHERE")[0]
    else:
        wrong = re.sub(r"SELECT \w+", "SELECT COUNT" if "(" in asked.query else "SELECT name", asked.query)
    return [*_called(asked, wrong), assistant(_result(asked, wrong))]


def _copy(rng: random.Random, asked: SqlProblem) -> list[Message]:
    """Queries well, and then does not answer with the bare value."""
    answer = rng.choice(wordy(asked.answer))
    return [*_called(asked, asked.query), assistant(answer)]


def _malformed(rng: random.Random, asked: SqlProblem) -> list[Message]:
    """Text that no parser takes for a call, so that it ends the episode as its answer."""
    broken = rng.choice([*broken_calls(tool_call(asked.query)), f"sql({asked.query})", asked.query])
    return [assistant(broken)]


def _rejected(rng: random.Random, asked: SqlProblem) -> list[Message]:
    """A call that the environment answers with an error; then a second try, or a guess."""
    good = tool_call(asked.query)
    rejected, error = rng.choice(
        [
            (good.replace('"sql"', '"query"'), "unknown tool 'query'"),
            (good.replace('"query":', '"sql":'), "missing argument 'query'; unknown argument 'sql'"),
            (tool_call(asked.query.replace("SELECT", "GET")), 'near "GET": syntax error'),
            (tool_call(asked.query.replace(" FROM ", " TABLE ")), 'near "TABLE": syntax error'),
        ]
    )
    rest = _correct(rng, asked) if rng.random() < 0.3 else _guess(rng, asked)
    return [assistant(rejected), tool(f"Error: {error}", tool_call_id="call"), *rest]


def _called(asked: SqlProblem, query: str) -> list[Message]:
    return [assistant(tool_call(query)), tool(_result(asked, query), tool_call_id="call")]


def _result(asked: SqlProblem, query: str) -> str:
    with closing(asked.open()) as database:
        return database.query(query)


_BEHAVIOURS: dict[Behaviour, Callable[[random.Random, SqlProblem], list[Message]]] = {
    "correct": _correct,
    "guess": _guess,
    "query": _query,
    "copy": _copy,
    "malformed": _malformed,
    "rejected": _rejected,
}
