"""Tests of code that nobody trusts. Every verdict is a comparison made outside of the sandbox that ran the code.

So nothing that the code prints, returns, patches or exits with can make a test pass, other than the right value: what
is expected never enters the sandbox.
"""

from __future__ import annotations

import ast
import asyncio
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from agentrl.sandbox import Sandbox, SandboxLimits, SandboxResult

_SHOWN = 200  # characters of a value in a report
_MAX_VALUE = 65_536  # characters: reading more would hold up the event loop
_MIN_OUTPUT = 1024 * 1024  # bytes: the answers of all calls come through standard output
_AT_ONCE = 8  # runs of the sandbox for one report


class CallTest(Struct, frozen=True):
    """An expression over the code's names, evaluated after it, like `add(1, 2)`; and its value.

    The value is made of what a Python literal can say: None, bools, numbers, strings, bytes, lists, tuples, dicts and
    sets. Floats are compared to 9 digits; True is not 1.
    """

    call: str
    expected: Any


class ProgramTest(Struct, frozen=True):
    """What the code reads as a whole program, and what it has to print. Space at the ends of lines does not matter."""

    stdin: str
    stdout: str


class TestReport(Struct, frozen=True):
    """How many tests passed, and a line for each that did not."""

    __test__ = False  # no test class of pytest's

    passed: int
    total: int
    failures: tuple[str, ...] = ()

    @property
    def all_passed(self) -> bool:
        return self.passed == self.total

    @property
    def report(self) -> str:
        """For a person, or for a policy that may see its tests: it names what was expected."""
        return "\n".join([f"{self.passed} of {self.total} tests passed", *self.failures])


def assertion_tests(source: str) -> list[CallTest]:
    """The tests in lines like `assert CALL == LITERAL`; `assert CALL` expects True, `assert not CALL` False.

    Raises ValueError for any other statement: it could only be judged inside, where the code could cheat.
    """
    return [_test_of(statement) for statement in ast.parse(source).body]


async def run_tests(
    sandbox: Sandbox,
    code: str,
    tests: Sequence[CallTest | ProgramTest],
    *,
    limits: SandboxLimits | None = None,
) -> TestReport:
    """Runs all `CallTest`s in one process and each `ProgramTest` in one of its own, every one within `limits`.

    Raises SandboxFault when the sandbox failed, which says nothing about the code.
    """
    calls = [test for test in tests if isinstance(test, CallTest)]
    programs = [test for test in tests if isinstance(test, ProgramTest)]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def run_program(test: ProgramTest) -> str | None:
        async with turns:
            return await _run_program(sandbox, code, test, limits)

    failures = iter(await _run_calls(sandbox, code, calls, limits) if calls else [])
    of_programs = iter(await asyncio.gather(*map(run_program, programs)))
    in_order = [next(failures) if isinstance(test, CallTest) else next(of_programs) for test in tests]
    failed = tuple(failure for failure in in_order if failure is not None)
    return TestReport(passed=len(tests) - len(failed), total=len(tests), failures=failed)


async def _run_calls(
    sandbox: Sandbox, code: str, tests: Sequence[CallTest], limits: SandboxLimits | None
) -> list[str | None]:
    """Per test None, or why it failed."""
    limits = limits or SandboxLimits()
    limits = msgspec.structs.replace(limits, output_bytes=max(limits.output_bytes, _MIN_OUTPUT))
    result = await sandbox.run(
        ["python3", "-I", "runner.py"],
        files={"runner.py": _RUNNER},
        stdin=json.dumps({"code": code, "calls": [test.call for test in tests]}),
        limits=limits,
    )
    answers = [_answer(line) for line in result.stdout.split("\n")]
    if answers[0] is not None and answers[0][0] == "broken":
        return [f"{test.call}: the code raised {answers[0][1]}" for test in tests]
    answers += [None] * len(tests)
    return [_judge(test, answer, result) for test, answer in zip(tests, answers, strict=False)]


def _judge(test: CallTest, answer: tuple[str, str] | None, result: SandboxResult) -> str | None:
    if answer is None:
        return f"{test.call}: no answer; {_ending(result)}"
    kind, text = answer
    if kind != "value":
        return f"{test.call}: raised {text[:_SHOWN]}"
    if len(text) > _MAX_VALUE:
        return f"{test.call}: the value is longer than {_MAX_VALUE} characters"
    try:
        right = same(ast.literal_eval(text), test.expected)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):  # the last: an int past the floats
        right = False
    return None if right else f"{test.call}: expected {_short(test.expected)}, got {text[:_SHOWN]}"


def _answer(line: str) -> tuple[str, str] | None:
    """A line of the runner's; the code may have written anything in its place."""
    try:
        match json.loads(line):
            case [str(kind), str(text)]:
                return kind, text
    except (ValueError, RecursionError):
        pass
    return None


async def _run_program(sandbox: Sandbox, code: str, test: ProgramTest, limits: SandboxLimits | None) -> str | None:
    result = await sandbox.run(
        ["python3", "-I", "program.py"], files={"program.py": code}, stdin=test.stdin, limits=limits
    )
    what = f"input {_short(test.stdin)}"
    if not result.ok:
        return f"{what}: {_ending(result)}"
    if not result.truncated and _lines(result.stdout) == _lines(test.stdout):
        return None
    return f"{what}: expected {_short(test.stdout)}, got {_short(result.stdout)}"


def same(value: Any, expected: Any) -> bool:
    """Equal in value and type, floats to 9 digits. An integer may stand for a whole float that is expected."""
    if isinstance(expected, float):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and (math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-12) or value == expected)
    if type(value) is not type(expected):
        return False
    if isinstance(expected, list | tuple):
        return len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, dict):
        return _typed(value) == _typed(expected) and all(same(value[key], expected[key]) for key in expected)
    if isinstance(expected, set):
        return _typed(value) == _typed(expected)
    return bool(value == expected)


def _typed(values: Iterable[Any]) -> set[tuple[type, Any]]:
    return {(type(value), value) for value in values}


def _test_of(statement: ast.stmt) -> CallTest:
    if isinstance(statement, ast.Assert):
        match statement.test:
            case ast.Compare(left=call, ops=[ast.Eq() | ast.Is()], comparators=[expected]):
                try:
                    return CallTest(ast.unparse(call), ast.literal_eval(expected))
                except ValueError:
                    pass
            case ast.UnaryOp(op=ast.Not(), operand=ast.Call() as call):
                return CallTest(ast.unparse(call), False)
            case ast.Call() as call:
                return CallTest(ast.unparse(call), True)
    raise ValueError(
        f"line {statement.lineno} is {ast.unparse(statement)[:_SHOWN]!r}; a test is `assert CALL == LITERAL`, "
        "`assert CALL` or `assert not CALL`"
    )


def _ending(result: SandboxResult) -> str:
    last = result.stderr.strip().rpartition("\n")[2]
    return f"{result.reason or 'it ended early'}{f' ({last[:_SHOWN]})' if last else ''}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


_RUNNER = Path(__file__).with_name("code_runner.py").read_bytes()
