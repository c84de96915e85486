"""What an embedded policy is taught: an environment, its written episodes, and names for the ways to fail in it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.env.tool_env import ToolEnv
from agentrl.messages import Message
from agentrl_envs.calculator import transcripts as calculator
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.python_code import transcripts as python_code
from agentrl_envs.python_code.env import PythonCode
from agentrl_envs.sql import transcripts as sql
from agentrl_envs.sql.env import Sql
from agentrl_envs.transcripts import CORRECT

Mix = Mapping[str, float]
Failure = Callable[[Any, Sequence[str], Message], str]
"""(environment, arguments of its tool calls as JSON, last message) -> a name for what went wrong."""


class Transcript(Protocol):
    """One written episode."""

    @property
    def behaviour(self) -> str: ...

    @property
    def messages(self) -> list[Message]: ...


@dataclass(frozen=True)
class Skill:
    """One environment as the warm start sees it."""

    name: str
    make: Callable[[], ToolEnv]
    write: Callable[[random.Random, Mix], Transcript]
    correct: Mix
    warm_start: Mix
    failure: Failure
    signatures: str  # of its tools, as the chat template writes them; "" without tools


def _calculator_failure(env: Calculator, calls: Sequence[str], last: Message) -> str:
    if any(f'"{env.asked.expression}"' in arguments for arguments in calls):
        return "wrong answer after the right call"
    if calls:
        return "wrong call"
    return "guess without a call" if re.fullmatch(r"-?\d+", last.text.strip()) else "malformed call"


def _sql_failure(env: Sql, calls: Sequence[str], last: Message) -> str:
    if any(f'"{env.asked.query}"' in arguments for arguments in calls):
        return "wrong answer after the right query"
    if calls:
        return "wrong query"
    return "guess without a call" if re.fullmatch(r"\w+", last.text.strip()) else "malformed call"


def _code_failure(env: PythonCode, calls: Sequence[str], last: Message) -> str:
    try:
        compile(last.text, "answer", "exec")
    except (SyntaxError, ValueError):
        return "no Python"
    return "other function" if "return " in last.text else "returns nothing"


CALCULATOR = Skill(
    "calculator",
    Calculator,
    calculator.transcript,
    CORRECT,
    calculator.WARM_START,
    _calculator_failure,
    "calculate(expression)",
)
SQL = Skill("sql", Sql, sql.transcript, CORRECT, sql.WARM_START, _sql_failure, "sql(query)")
PYTHON_CODE = Skill(
    "python_code",
    PythonCode,
    python_code.transcript,
    CORRECT,
    python_code.WARM_START,
    _code_failure,
    "",
)
