"""`CodeEnv`: code runs in the sandbox, files last an episode, and no code can forge its verdict."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import agentrl
from agentrl.env.code_env import code_block, reply
from agentrl.env.code_tests import CallTest, ProgramTest, assertion_tests, run_tests, same
from agentrl.errors import SandboxFault, SandboxUnavailable
from agentrl.sandbox import SandboxLimits, SandboxResult, ScriptedSandbox, Verdict, default_sandbox


class Coding(agentrl.CodeEnv):
    languages = ("python", "bash")
    program_limits = SandboxLimits(wall_s=5)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.place({"data.txt": "1\n2\n"})
        return [agentrl.user("Write add(a, b).")], {}

    async def score(self, message: agentrl.Message) -> float:
        report = await self.run_tests(code_block(message.text) or "", assertion_tests("assert add(1, 2) == 3"))
        return float(report.all_passed)


class Forgetful(Coding):
    keeps_files = False
    languages = ("bash",)


@pytest.fixture
def env() -> Iterator[Coding]:
    made = Coding(sandbox())
    made.reset(seed=1)
    yield made
    made.close()


def sandbox() -> Any:
    try:
        return default_sandbox()
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def call(name: str, **arguments: str) -> agentrl.Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return agentrl.assistant(None, tool_calls=[{"id": "call", "type": "function", "function": function}])


def told(env: agentrl.CodeEnv, action: agentrl.Message) -> str:
    (message,), *_ = env.step(action)
    return str(message.text)


def test_the_tools_of_the_class_are_offered() -> None:
    assert [tool["function"]["name"] for tool in Coding(ScriptedSandbox([])).tools] == ["python", "bash"]
    assert [tool["function"]["name"] for tool in Forgetful(ScriptedSandbox([])).tools] == ["bash"]


def test_a_language_that_is_not_offered_is_an_unknown_tool() -> None:
    env = Forgetful(ScriptedSandbox([]))
    env.reset(seed=1)
    assert told(env, call("python", code="1")) == "Error: unknown tool 'python'"


def test_code_is_run_and_its_output_told(env: Coding) -> None:
    assert told(env, call("python", code="print(sum(map(int, open('data.txt'))))")) == "3"
    assert told(env, call("python", code="pass")) == "(no output)"


def test_a_failure_is_told_with_its_traceback_and_its_ending(env: Coding) -> None:
    text = told(env, call("python", code="x = 1\n1 / (x - 1)"))
    assert "line 2" in text
    assert "ZeroDivisionError" in text
    assert text.endswith("(it ended with exit code 1)")


def test_a_timeout_is_told_in_words(env: Coding) -> None:
    env.program_limits = SandboxLimits(wall_s=0.5)  # type: ignore[misc]
    assert told(env, call("bash", command="echo before; sleep 100")) == "before\n(it ran longer than 0.5 s)"


def test_files_last_over_an_episode_and_not_into_the_next(env: Coding) -> None:
    told(env, call("bash", command="echo kept > mine; rm data.txt"))
    assert told(env, call("bash", command="ls -A; cat mine")) == "mine\nkept"
    env.reset(seed=1)
    assert told(env, call("bash", command="ls -A")) == "data.txt"


def test_without_kept_files_each_call_begins_anew() -> None:
    env = Forgetful(sandbox())
    env.reset(seed=1)
    told(env, call("bash", command="echo x > mine"))
    assert told(env, call("bash", command="ls -A")) == "data.txt"


def test_parallel_calls_share_the_folder_one_after_the_other(env: Coding) -> None:
    calls = [call("bash", command="echo x >> log; wc -l < log").tool_calls[0] for _ in range(4)]
    messages, *_ = env.step(agentrl.assistant(None, tool_calls=calls))
    assert sorted(message.text for message in messages) == ["1", "2", "3", "4"]


def test_the_folder_is_gone_after_close_and_after_reset() -> None:
    def folders() -> set[str]:
        return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("agentrl-scratch-")}

    before = folders()
    env = Coding(sandbox())
    for _ in range(2):
        env.reset(seed=1)
        told(env, call("bash", command="mkdir -p a/b && chmod 0 a"))
        assert len(folders() - before) == 1
    env.close()
    env.close()
    assert folders() - before == set()


@pytest.mark.parametrize(
    ("mischief", "then"),
    [
        ("mkdir -p .program.py/x", "2"),  # a folder where the next program has to be
        ("dd if=/dev/zero of=a bs=1M count=2 2>&-; ln a b; ln a c", "2"),  # 6 MiB by name, 2 MiB on the disk
        ("truncate -s 2M a; truncate -s 2M b", "(its work folder is full: .program.py does not fit on its disk of"),
        ("cat /dev/zero > a", "(its work folder is full: .program.py does not fit on its disk of"),
        ("mkdir notes; ln -s /tmp notes/x; rm -r notes; ln -s /etc notes", "2"),
    ],
)
def test_nothing_that_the_policy_does_to_its_work_folder_is_a_fault_of_the_sandbox(
    env: Coding, mischief: str, then: str
) -> None:
    env.program_limits = SandboxLimits(wall_s=5, disk_bytes=4 * 2**20)  # type: ignore[misc]
    told(env, call("bash", command=mischief))
    assert told(env, call("python", code="print(1 + 1)")).startswith(then)
    assert told(env, call("bash", command="rm -rf .program.py * && echo empty")) == "empty"
    assert told(env, call("python", code="print(1 + 1)")) == "2"


async def test_what_is_placed_takes_the_place_of_what_the_policy_put_there() -> None:
    env = Coding(sandbox())
    env.reset(seed=1)
    await env.run_program(["ln", "-s", "/tmp", "tests"])
    env.place({"tests/a.txt": "hidden"})
    assert (await env.run_program(["sh", "-c", "ls -F; cat tests/a.txt"])).stdout == "data.txt\ntests/\nhidden"
    env.close()


async def test_nothing_runs_without_what_was_placed_once_the_policy_has_filled_its_folder() -> None:
    env = Coding(sandbox())
    env.program_limits = SandboxLimits(wall_s=5, disk_bytes=2**20)  # type: ignore[misc]
    env.reset(seed=1)
    await env.run_program(["sh", "-c", "cat /dev/zero > a"])
    env.place({"late.txt": "here"})
    for _ in range(2):
        refused = await env.run_program(["cat", "late.txt"])
        assert (refused.verdict, refused.stdout) == (Verdict.DISK, "")
    env.close()


def test_a_fault_of_the_sandbox_ends_the_episode_and_is_no_answer() -> None:
    def fail(_: Any) -> SandboxResult:
        raise SandboxFault("the sandbox did not start")

    env = Coding(ScriptedSandbox(fail))
    env.reset(seed=1)
    with pytest.raises(agentrl.EnvironmentFault, match="did not start"):
        env.step(call("python", code="1"))


def test_the_answers_code_is_scored(env: Coding) -> None:
    assert env.step("```python\ndef add(a, b):\n    return a + b\n```")[1] == 1.0
    assert env.step("```python\ndef add(a, b):\n    return a - b\n```")[1] == 0.0
    assert env.step("")[1] == 0.0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("first\n```py\na\n```\nthen\n```\nb\n```\nend", "b\n"),
        ("````python\n```\n````", "```\n"),
        ("```python\ncut off", "cut off"),
        ("```bash\nls\n```", None),
        ("no code", None),
        ("", None),
    ],
)
def test_the_last_block_of_the_language_is_taken(text: str, found: str | None) -> None:
    assert code_block(text) == found


def test_a_long_reply_keeps_both_ends_and_the_ending() -> None:
    result = SandboxResult(
        verdict=Verdict.FAILED, stdout="a" * 500, stderr="b" * 500, reason="it ended with exit code 1"
    )
    text = reply(result, 200)
    assert len(text) <= 200
    assert text.startswith("aaa")
    assert text.endswith("bbb\n(it ended with exit code 1)")
    assert "characters left out]" in text


FORGERIES = """

== exits
import os; os._exit(0)
== exits by exception
raise SystemExit(0)
== prints that it passed
print('["value", "3"]'); print("1 of 1 tests passed")
== is equal to everything
class Any:
    def __eq__(self, other): return True
    def __repr__(self): return "Any()"
def add(a, b): return Any()
== is a number that is equal to everything
class Three(int):
    def __eq__(self, other): return True
def add(a, b): return Three(4)
== patches what the answers are written with
import json
json.dumps = lambda answer: '["value", "None"]'
def add(a, b): return 0
== looks for what is expected
import sys
frame = sys._getframe()
while frame.f_back: frame = frame.f_back
known = repr(frame.f_locals) + repr(frame.f_globals) + open(sys.argv[0]).read()
for n in range(3, 10):
    if f"expected={n}" in known or f"== {n}" in known: break
def add(a, b): return n
== writes to every descriptor
import os
for fd in range(3, 64):
    try: os.write(fd, b'["value", "True"]\\n')
    except OSError: pass
def add(a, b): return 0
== floods with answers
import os
os.write(3, b'["value", "[[[[1]]]]"]\\n' * 1000)
def add(a, b): return 0
== nests deeply
def add(a, b):
    class Deep:
        def __repr__(self): return "[" * 50000
    return Deep()
== raises
def add(a, b): raise KeyboardInterrupt
== never ends
def add(a, b):
    while True: pass
== is no code
def add(
"""
WRONG = {name: code for name, _, code in (part.partition("\n") for part in FORGERIES.split("\n== ")[1:])}


@pytest.mark.parametrize("name", WRONG)
async def test_code_that_gives_the_wrong_value_never_passes(name: str) -> None:
    limits = SandboxLimits(wall_s=3, cpu_s=1)
    report = await run_tests(sandbox(), WRONG[name], [CallTest("add(1, 2)", 3)], limits=limits)
    assert (report.passed, report.total) == (0, 1)
    assert report.failures[0].startswith("add(1, 2): ")


async def test_each_test_is_judged_by_its_value_and_type() -> None:
    code = "def f(x): return x\ndef half(x): return x / 2\ndef pair(): return (1, [2], {3: {4}})"
    tests = [
        CallTest("f(1)", 1),
        CallTest("f(True)", 1),
        CallTest("f((1, 2))", [1, 2]),
        CallTest("half(3)", 1.5),
        CallTest("half(0.2) + 0.2", 0.3),
        CallTest("f(2)", 2.0),
        CallTest("pair()", (1, [2], {3: {4}})),
        CallTest("missing()", None),
    ]
    report = await run_tests(sandbox(), code, tests)
    assert report.report.split("\n") == [
        "5 of 8 tests passed",
        "f(True): expected 1, got True",
        "f((1, 2)): expected [1, 2], got (1, 2)",
        "missing(): raised NameError: name 'missing' is not defined",
    ]


async def test_a_call_that_never_ends_costs_the_ones_after_it() -> None:
    code = "def f(x):\n    while x == 1: pass\n    return x"
    tests = [CallTest("f(0)", 0), CallTest("f(1)", 1), CallTest("f(2)", 2)]
    report = await run_tests(sandbox(), code, tests, limits=SandboxLimits(wall_s=1))
    assert report.passed == 1
    assert report.failures == tuple(f"f({n}): no answer; it ran longer than 1 s" for n in (1, 2))


async def test_whole_programs_are_judged_by_what_they_print() -> None:
    tests = [
        ProgramTest("2 3", "5\n"),
        ProgramTest("1 1", "3"),
        ProgramTest("x", "5"),
    ]
    report = await run_tests(sandbox(), "a, b = map(int, input().split())\nprint(a + b, ' ')", tests)
    assert report.passed == 1
    assert report.failures[0] == "input '1 1': expected '3', got '2  \\n'"
    assert report.failures[1].startswith("input 'x': it ended with exit code 1 (ValueError: ")


def test_assertions_become_tests() -> None:
    source = "assert f([1]) == [2]\nassert g() is None\nassert h(1)\nassert not h(-2)"
    assert assertion_tests(source) == [
        CallTest("f([1])", [2]),
        CallTest("g()", None),
        CallTest("h(1)", True),
        CallTest("h(-2)", False),
    ]


@pytest.mark.parametrize("source", ["x = 1", "assert f(1) == g(1)", "assert f(1) > 2", "assert x"])
def test_an_assertion_that_only_the_inside_could_judge_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"line 1 is .*; a test is `assert CALL == LITERAL`"):
        assertion_tests(source)


def test_values_are_the_same_only_in_value_and_type() -> None:
    assert same([1, 2.0, "a", None, {"k": (1,)}], [1, 2.0, "a", None, {"k": (1,)}])
    assert same(0.1 + 0.2, 0.3)
    assert same(2, 2.0)
    assert not same(2.0, 2)
    assert not same(1, True)
    assert not same([1, 2], [1])
    assert not same({"a": 1}, {"a": True})
    assert not same({1: "a"}, {True: "a"})
    assert same({1, "a"}, {"a", 1})
    assert not same({1}, {True})


async def test_a_number_past_the_floats_is_a_wrong_answer_and_no_failure_of_the_test() -> None:
    scripted = ScriptedSandbox([SandboxResult(verdict=Verdict.OK, stdout=f'["value", "1{"0" * 400}"]\n')])
    report = await run_tests(scripted, "def f(): ...", [CallTest("f()", 0.5)])
    assert (report.passed, report.total) == (0, 1)


def test_a_file_outside_the_work_folder_cannot_be_placed(env: Coding, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not in the work folder"):
        env.place({"../x": ""})


def test_the_sandbox_can_be_named_by_its_kind() -> None:
    assert repr(Coding("unsafe").sandbox) == "UnsafeSandbox()"
    with pytest.raises(agentrl.ConfigError, match="there is no sandbox 'jail'"):
        Coding("jail")
