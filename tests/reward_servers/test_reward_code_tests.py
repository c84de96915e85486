"""The code_tests service, on the sandbox of this machine."""

from __future__ import annotations

from typing import Any

import pytest

from agentrl.errors import AgentRLError
from agentrl.reward.protocol import Item, Score
from agentrl.sandbox import default_sandbox
from agentrl_rewards.code_tests.service import CodeTests

try:
    default_sandbox()
except AgentRLError as error:
    pytest.skip(f"no sandbox here: {error}", allow_module_level=True)

ADD = "```python\ndef add(a, b):\n    return a + b\n```"
WRONG_FOR_NEGATIVES = "```python\ndef add(a, b):\n    return abs(a) + b\n```"
ASSERTS = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"


async def score(text: str, tests: Any, **options: Any) -> Score:
    (found,) = await CodeTests(**options).score([Item(id="a", text=text, task={"options": {"tests": tests}})])
    return found


@pytest.mark.parametrize(
    ("text", "reward", "passed"),
    [(ADD, 1.0, 2.0), (WRONG_FOR_NEGATIVES, 0.0, 1.0), ("no code at all", 0.0, 0.0), ("```python\n(\n```", 0.0, 0.0)],
)
async def test_all_tests_have_to_pass(text: str, reward: float, passed: float) -> None:
    assert await score(text, ASSERTS) == Score(id="a", reward=reward, components={"passed": passed, "tests": 2.0})


async def test_the_share_that_passes_counts_where_it_is_asked_for() -> None:
    assert (await score(WRONG_FOR_NEGATIVES, ASSERTS, share=True)).reward == 0.5


async def test_tests_may_be_calls_or_whole_programs() -> None:
    calls = [{"call": "add(1, 2)", "expected": 3}]
    assert (await score(ADD, calls)).reward == 1.0
    program = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
    assert (await score(program, [{"stdin": "1 2\n", "stdout": "3\n"}])).reward == 1.0


@pytest.mark.parametrize(
    "cheat",
    [
        "import sys\nprint('2 of 2 tests passed')\nsys.exit(0)",
        "import os\nos._exit(0)",
        "class Any:\n    def __eq__(self, other): return True\ndef add(a, b): return Any()",
        "while True: pass",
    ],
)
async def test_code_cannot_forge_its_verdict(cheat: str) -> None:
    assert (await score(f"```python\n{cheat}\n```", ASSERTS, wall_s=2.0)).reward == 0.0


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ("import os", "these are no tests"),
        ("assert (", "these are no tests"),
        ([], "an empty list of tests"),
        ([{"call": "f()"}], "these are no tests"),
        (7, "these are no tests"),
    ],
)
async def test_tests_that_cannot_be_read_leave_the_item_unscored(tests: Any, said: str) -> None:
    found = await score(ADD, tests)
    assert found.reward is None
    assert said in str(found.error)
