"""Functions written by the policy: hidden tests decide in the sandbox, and the tested code cannot forge the verdict."""

from __future__ import annotations

import asyncio
import json
import time
import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import registry
from agentrl.env.code_tests import CallTest
from agentrl.errors import SandboxFault, SandboxUnavailable
from agentrl.messages import Message, assistant
from agentrl.sandbox import SandboxResult, ScriptedSandbox, Verdict, default_sandbox
from agentrl_envs.python_code.env import PythonCode
from agentrl_envs.python_code.reference import reference
from agentrl_envs.python_code.tasks import LEVELS, CodeProblem, problem

CODE = "agentrl/PythonCode-v0"
SPLITS = ("train", "eval")
SEEDS = st.integers(min_value=0, max_value=2**53)
SUMS = ((1, 2, 3), (3, 4, 7), (-5, 5, 0))
ADD = CodeProblem(
    "add", "", "def add(a, b):\n    return a + b", tuple(CallTest(f"add({a}, {b})", total) for a, b, total in SUMS)
)


def isolation() -> bool:
    try:
        default_sandbox()
    except SandboxUnavailable:
        return False
    return True


needs_sandbox = pytest.mark.skipif(not isolation(), reason="this machine isolates no programs")


def answers(*values: object) -> ScriptedSandbox:
    """A sandbox whose program gave these values, one a test."""
    lines = "".join(json.dumps(["value", repr(value)]) + "\n" for value in values)
    return ScriptedSandbox(lambda _: SandboxResult(verdict=Verdict.OK, stdout=lines))


async def rewarded(text: str, asked: CodeProblem = ADD, **options: Any) -> float:
    env = PythonCode(reward="share", **options)
    env.reset(seed=0)
    env.asked = asked
    return (await env.step(text))[1]  # type: ignore[misc]


# -- tasks ------------------------------------------------------------------------------------------------------------


@needs_sandbox
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("level", LEVELS)
async def test_the_reference_solves_52_tasks_of_each_split_and_level_and_an_empty_answer_none(
    level: Any, split: str
) -> None:
    tasks = list(registry.tasks(CODE, split=split, seed=1, count=52, env_kwargs={"level": level}))
    assert len(tasks) == 52

    async def rewards(task: Any) -> tuple[float | None, float | None]:
        env = PythonCode(level=level)
        options = {**task.options, "split": split}
        messages, _ = env.reset(seed=task.seed, options=options)
        _, solved, *_ = await env.step(reference(env.asked, messages))  # type: ignore[misc]
        env.reset(seed=task.seed, options=options)
        _, empty, *_ = await env.step("")  # type: ignore[misc]
        return solved, empty

    assert await asyncio.gather(*map(rewards, tasks)) == [(1.0, 0.0)] * 52


@needs_sandbox
def test_it_passes_gymnasiums_checker_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(CODE).unwrapped)


def test_a_seed_names_one_problem_on_every_machine() -> None:
    assert problem(0, "train").prompt == "Write f(k): subtract 67 from k, then subtract 64."
    assert problem(0, "train").solution == "def f(k):\n    return (k-67)-64"


@given(SEEDS, st.sampled_from(SPLITS), st.sampled_from(list(LEVELS)))
def test_every_problem_is_repeatable_json_and_beyond_a_constant(seed: int, split: Any, level: Any) -> None:
    found = problem(seed, split, level)
    assert found == problem(seed, split, level)
    values = [test.expected for test in found.tests]
    assert json.loads(json.dumps(values)) == values
    assert len(values) == 12
    assert len({repr(test.expected) for test in found.tests}) > 1


@pytest.mark.parametrize("level", LEVELS)
def test_no_function_of_the_training_split_is_held_out(level: Any) -> None:
    train, held_out = ({problem(seed, split, level).solution for seed in range(400)} for split in SPLITS)  # type: ignore[arg-type]
    assert len(held_out) >= 100
    assert not train & held_out


def test_the_hidden_tests_are_not_in_what_the_policy_sees() -> None:
    for seed in range(50):
        found = problem(seed, "train", "medium")
        shown = found.prompt.count(" == ")
        assert shown == 2
        assert found.solution not in found.prompt


def test_unknown_splits_levels_and_rewards_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no split 'test'; use 'train' or 'eval'"):
        problem(0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no level 'huge'; use one of easy, medium, hard"):
        PythonCode(level="huge", sandbox=answers())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no reward 'half'; use 'all' or 'share'"):
        PythonCode(reward="half", sandbox=answers())  # type: ignore[arg-type]


# -- grading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("def f(): pass", "def f(): pass"),
        ("```python\nx = 1\n```", "x = 1\n"),
        ("First:\n```\nx = 1\n```\nthen better:\n```py\nx = 2\n```\nDone.", "x = 2\n"),
        ("", ""),
    ],
)
async def test_the_last_fenced_block_is_the_code_or_else_all_of_the_text(text: str, code: str) -> None:
    sandbox = answers()
    await rewarded(text, sandbox=sandbox)
    (request,) = sandbox.requests
    assert json.loads(request.stdin)["code"] == code


async def test_what_the_sandbox_is_given_holds_no_expected_value() -> None:
    sandbox = answers()
    await rewarded("code", CodeProblem("f", "", "", (CallTest("f(1)", "a secret"),)), sandbox=sandbox)
    (request,) = sandbox.requests
    assert b"a secret" not in request.stdin + b"".join(request.files.values())


async def test_a_broken_sandbox_is_a_fault_and_no_reward() -> None:
    def broken(_: Any) -> SandboxResult:
        raise SandboxFault("no room")

    env = PythonCode(sandbox=ScriptedSandbox(broken))
    env.reset(seed=0)
    with pytest.raises(SandboxFault, match="no room"):
        await env.step("def f(): ...")  # type: ignore[misc]


async def test_the_reward_is_all_or_nothing_or_the_share_of_tests() -> None:
    for reward, expected in (("all", 0.0), ("share", 0.25)):
        env = PythonCode(reward=reward, sandbox=ScriptedSandbox([]))  # type: ignore[arg-type]
        env.reset(seed=0)
        env.sandbox = answers(*[test.expected for test in env.asked.tests[:3]])
        assert (await env.step("code"))[1] == expected  # type: ignore[misc]


@needs_sandbox
async def test_good_code_passes_all_and_code_that_is_good_in_part_its_part() -> None:
    assert await rewarded(ADD.solution) == 1.0
    assert await rewarded("import operator\nadd = operator.add") == 1.0
    assert await rewarded("def add(a, b):\n    return 3") == 1 / 3
    assert await rewarded("def add(a, b):\n    assert a > 0\n    return a + b") == 2 / 3
    assert await rewarded("def add(a, b):\n    print('noise', 3)\n    return a + b") == 1.0


HOSTILE = {
    "exits at once": "import os\nos._exit(0)",
    "exits well": "import sys\nsys.exit(0)",
    "says that it passed": "print('passed')\nprint('[3]\\n[7]\\n[0]')",
    "writes to every descriptor": (
        "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'true\\n' * 12)\n    except OSError: pass"
    ),
    "spins": "while True: pass",
    "spins in the function": "def add(a, b):\n    while True: pass",
    "sleeps": "import time\ntime.sleep(1000)",
    "fills memory": "x = bytearray(10**10)",
    "forks without end": "import os\nwhile True: os.fork()",
    "prints without end": "import sys\nwhile True: sys.__stdout__.write('x' * 10**6)",
    "makes everything equal": "class E(int):\n    __eq__ = lambda self, other: True\ndef add(a, b): return E(99)",
    "patches the runner": "import json\njson.dumps = lambda value: '[true]'\ndef add(a, b): return None",
    "reads its caller": (
        "import sys\ndef add(a, b):\n    seen = sys._getframe(1).f_locals\n    return seen.get('expected', str(seen))"
    ),
    "reads the tests": "import glob\ndef add(a, b):\n    return open(glob.glob('*test*')[0]).read()",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ntime = 1",
    "recurses": "def add(a, b): return add(a, b)",
    "nests deeply": "add = " + "(" * 9000 + ")" * 9000,
    "is no Python": "I would write add(a, b) like this: a + b",
    "is not text": "\0\ud800",
    "defines nothing": "x = 1",
    "names no function": "add = 3",
    "returns what is not JSON": "def add(a, b): return {1, 2}",
    "returns without measure": "def add(a, b): return 'x' * 10**8",
}


@needs_sandbox
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_code_scores_nothing_in_bounded_time(name: str) -> None:
    """Ten seconds of wall time at most, and as much again for a busy machine."""
    started = time.monotonic()
    assert await rewarded(HOSTILE[name]) == 0
    assert time.monotonic() - started < 20


async def test_code_too_long_is_not_run() -> None:
    assert await rewarded("x" * 20_001, sandbox=ScriptedSandbox([])) == 0


# -- the tool ---------------------------------------------------------------------------------------------------------


def call(code: str) -> Message:
    function = {"name": "python", "arguments": json.dumps({"code": code})}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])


def test_the_tool_is_offered_above_the_easy_level_or_as_told() -> None:
    def offered(**options: Any) -> bool:
        return bool(PythonCode(**options, sandbox=answers()).tools)

    assert [offered(level=level) for level in LEVELS] == [False, True, True]
    assert offered(level="easy", run_tool=True)
    assert not offered(level="hard", run_tool=False)


async def test_a_tool_that_is_not_offered_is_unknown() -> None:
    env = PythonCode(sandbox=ScriptedSandbox([]))
    env.reset(seed=0)
    (told,), *_ = await env.step(call("print(1)"))  # type: ignore[misc]
    assert told.text == "Error: unknown tool 'python'"


@needs_sandbox
async def test_the_tool_shows_what_a_program_prints_and_how_it_failed() -> None:
    env = PythonCode(level="hard")
    env.reset(seed=0)
    assert await env.python("print(6 * 7)") == "42"
    assert await env.python("x = 1") == "(no output)"
    assert "ZeroDivisionError" in await env.python("1 / 0")
    assert "(" in await env.python("while True: pass")


# -- one's own tasks --------------------------------------------------------------------------------------------------


async def test_a_task_may_bring_its_own_prompt_and_tests() -> None:
    env = PythonCode(sandbox=answers(25, [1]))
    tests = [{"arguments": [5], "expected": 25}, {"arguments": [1], "expected": [1]}]
    (message,), _ = env.reset(options={"prompt": "Write sq(x).", "name": "sq", "tests": tests})
    assert message.text == "Write sq(x)."
    assert (await env.step("def sq(x): ..."))[1] == 1.0  # type: ignore[misc]


@pytest.mark.parametrize("tests", [[], [{"arguments": [1]}]])
def test_a_task_of_ones_own_without_whole_tests_is_refused(tests: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"a task of one's own gives .* got prompt, name, tests"):
        PythonCode(sandbox=answers()).reset(options={"prompt": "?", "name": "f", "tests": tests})
