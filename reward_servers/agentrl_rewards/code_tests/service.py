"""Runs the tests of a task on the code of the policy's last message, in the sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from agentrl.env.code_env import code_block
from agentrl.env.code_tests import CallTest, ProgramTest, assertion_tests, run_tests
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import CannotScore, failed
from agentrl.sandbox import Sandbox, SandboxLimits, default_sandbox
from agentrl_rewards.labels import label_of


class CodeTests:
    """Unit tests of the last message's code, in the sandbox.

    The task's option named by `tests` holds them: lines like `assert add(1, 2) == 3`, or a list of
    `{"call": "add(1, 2)", "expected": 3}` and `{"stdin": "1 2", "stdout": "3"}`. Reward 1 when all pass, else 0; with
    `share` the share that passes. What is expected never enters the sandbox, so the code cannot forge its verdict.
    """

    def __init__(
        self,
        *,
        tests: str = "tests",
        share: bool = False,
        wall_s: float = 10.0,
        memory_mb: int = 512,
        at_once: int = 8,
        sandbox: Sandbox | None = None,
    ) -> None:
        """Raises SandboxUnavailable where there is none."""
        self._label = tests
        self._share = share
        self._limits = SandboxLimits(wall_s=wall_s, cpu_s=wall_s, memory_bytes=memory_mb * 2**20)
        self._slots = asyncio.Semaphore(at_once)
        self._sandbox = sandbox or default_sandbox()

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        return await asyncio.gather(*map(self._one, items))

    async def close(self) -> None:
        """Nothing is held open."""

    async def _one(self, item: Item) -> Score:
        try:
            tests = read_tests(label_of(item, self._label))
            code = code_block(item.text)
            if code is None:
                return _scored(item, 0, len(tests), reward=0.0)
            async with self._slots:
                report = await run_tests(self._sandbox, code, tests, limits=self._limits)
            reward = report.passed / report.total if self._share else float(report.all_passed)
            return _scored(item, report.passed, report.total, reward=reward)
        except Exception as error:  # one item's, never its batch's; a fault of the sandbox says nothing about the code
            return failed(item, error)


def read_tests(given: Any) -> list[CallTest | ProgramTest]:
    """Raises CannotScore for what is no list of tests."""
    try:
        tests = assertion_tests(given) if isinstance(given, str) else [_test(one) for one in given]
    except (ValueError, TypeError, SyntaxError, msgspec.ValidationError) as error:
        raise CannotScore(
            f"these are no tests: {error}; write lines like 'assert f(1) == 2', or a list of call and expected, or of "
            "stdin and stdout"
        ) from error
    if not tests:
        raise CannotScore("the task has an empty list of tests; give at least one")
    return list(tests)


def _test(given: Any) -> CallTest | ProgramTest:
    return msgspec.convert(given, ProgramTest) if "stdin" in given else msgspec.convert(given, CallTest)


def _scored(item: Item, passed: int, total: int, *, reward: float) -> Score:
    return Score(id=item.id, reward=reward, components={"passed": float(passed), "tests": float(total)})
